"""How long a purchase plan takes: 12 cards, 10 servers, 8 workloads, made up from a seed.

Each round is a whole plan: both optima, cost against days, and where the answer flips. Usage:

    python benchmarks/buy_speed.py [--rounds 5] [--cards 12] [--servers 10] [--demands 8]
"""

from __future__ import annotations

import argparse
import random
import time

from segplan.purchase import Cannot, Demand, Hours, Offer, Problem, Reason, Server, plan
from segplan.purchase import model as purchase_model

TARGET_S = 10.0


def made_up(seed: int, cards: int, servers: int, demands: int) -> Problem:
    """A problem of a lab's size: faster cards cost more, larger experiments fit fewer."""
    r = random.Random(seed)
    speeds = [r.uniform(0.5, 6) for _ in range(cards)]
    memory = [r.choice([11, 12, 16, 24, 24, 40, 48, 80]) for _ in range(cards)]
    offers = tuple(
        Offer(
            card=f"card-{i}",
            price=round(300 * speeds[i] * (memory[i] / 16) * r.uniform(0.7, 1.4)),
            owned=r.choice([0, 0, 0, 2]),
            rent_per_hour=round(0.25 * speeds[i], 2) if r.random() < 0.4 else None,
            power_w=r.choice([140, 250, 300, 350, 450, 600]),
            width=r.choice([1, 2, 2, 2, 3]),
            passive=r.random() < 0.3,
        )
        for i in range(cards)
    )
    racks = tuple(
        Server(
            name=f"server {i}",
            slots=r.choice([2, 4, 4, 8]),
            power_supply_w=r.choice([1000, 1600, 2000, 3200]),
            workstation=r.random() < 0.4,
            cpu_cores=r.choice([16, 32, 64]),
            ram_gib=r.choice([128, 256, 512]),
            power_w=r.choice([120, 200, 300]),
            price=r.choice([2500, 4000, 6000, 9000]) + 10 * i,
            owned=1 if i == 0 else 0,
        )
        for i in range(servers)
    )
    work = tuple(
        Demand(f"demand {i}", r.choice([2, 4, 8, 12]), r.choice([3, 5, 7]), r.choice([1, 1, 1, 2]))
        for i in range(demands)
    )
    times: dict[tuple[str, str], Hours | Cannot] = {}
    for demand in work:
        need = r.choice([8, 10, 14, 20, 22, 36])
        hours = r.uniform(20, 120)
        for offer, speed, size in zip(offers, speeds, memory, strict=True):
            mid = hours / speed
            times[demand.name, offer.card] = (
                Hours(mid * 0.8, mid, mid * 1.3)
                if size >= need
                else Cannot(Reason.MEMORY, need * 2**30, size * 2**30)
            )
    return Problem(
        work, offers, racks, times, budget=40_000, power_price=0.3, pue=1.3,
        cpu_cores_per_gpu=6, ram_gib_per_gpu=32,
    )  # fmt: skip


def main() -> None:
    """Print a row for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("rounds", 5), ("cards", 12), ("servers", 10), ("demands", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    print(f"{asked.cards} cards x {asked.servers} servers x {asked.demands} workloads")
    print("seed  seconds    CPU s  optimum s  flips  points  cheapest")
    slowest = 0.0
    for seed in range(asked.rounds):
        problem = made_up(seed, asked.cards, asked.servers, asked.demands)
        start = time.perf_counter()
        purchase_model.solve(problem)
        one = time.perf_counter() - start
        start, cpu = time.perf_counter(), time.process_time()
        found = plan(problem)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        slowest = max(slowest, seconds)
        cost = f"{found.cheapest.costs.total:.0f}" if found.cheapest else "impossible"
        print(
            f"{seed:>4} {seconds:>8.2f} {cpu:>8.2f} {one:>10.2f} {len(found.flips):>6} "
            f"{len(found.pareto):>7}  {cost}"
        )
    verdict = "within" if slowest <= TARGET_S else "over"
    print(f"slowest {slowest:.2f} s, {verdict} the target of {TARGET_S:.0f} s")


if __name__ == "__main__":
    main()
