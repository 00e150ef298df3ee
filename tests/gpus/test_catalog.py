from __future__ import annotations

import csv
import pickle
import re
from importlib import resources

import pytest

from segplan.errors import CardError, RequestError
from segplan.gpus import Card, GpuKind, card_key, catalogue, find_card, parse_gpus
from segplan.gpus.card import CONSERVATIVE_VISIBLE
from segplan.units import GIB, MIB

CARDS = catalogue()
IDS = [card.slug for card in CARDS]

# fp32 units of a multiprocessor, and dense fp16 multiply-adds of its tensor cores per clock with
# fp32 accumulation on cards that are not GeForce (NVIDIA's architecture whitepapers).
FP32_UNITS = {
    (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128,
    (10, 0): 128, (12, 0): 128,
}  # fmt: skip
TENSOR_FMAS = {
    (7, 0): 512, (7, 5): 512, (8, 0): 1024, (8, 6): 512, (8, 9): 512, (9, 0): 2048,
    (10, 0): 4096, (12, 0): 512,
}  # fmt: skip
GEFORCE = re.compile(r"^RTX (2080|30[0-9]0|40[0-9]0|50[0-9]0)")


@pytest.mark.parametrize("card", CARDS, ids=IDS)
def test_fp32_rate_is_units_times_clock(card: Card) -> None:
    assert card.compute_capability is not None
    assert card.sm_count is not None
    fp32 = card.rates["fp32"]
    assert fp32 is not None
    # A multiply-add is 2 FLOP. Boost clocks of these generations lie between 1.3 and 2.7 GHz
    # (V100 PCIe 1.37, RTX PRO 6000 2.6): a wrong count of units or a sparse rate leaves the band.
    clock = fp32 / (card.sm_count * FP32_UNITS[card.compute_capability] * 2)
    assert 1.3e9 < clock < 2.7e9


@pytest.mark.parametrize(
    "card", [c for c in CARDS if c.compute_capability and c.compute_capability >= (7, 0)],
    ids=lambda card: card.slug,
)  # fmt: skip
def test_tensor_rate_is_dense_and_accumulates_in_fp32(card: Card) -> None:
    assert card.compute_capability is not None
    fp16, fp32 = card.rates["fp16"], card.rates["fp32"]
    assert fp16
    assert fp32
    expected = TENSOR_FMAS[card.compute_capability] / FP32_UNITS[card.compute_capability]
    if GEFORCE.match(card.name):
        expected /= 2  # GeForce: half the rate with fp32 accumulation
        assert card.fp16_acc16 == pytest.approx(2 * fp16, rel=0.01)
    if card.name == "L40":
        expected /= 2  # what its datasheet says; marked doubtful in the catalogue
        assert "doubtful" in card.verification
    # Hopper's tensor cores run at a lower clock than its fp32 units (1.83 against 1.98 GHz).
    # A sparse rate would be twice as high.
    assert fp16 / fp32 == pytest.approx(expected, rel=0.10)


def test_known_traps() -> None:
    assert find_card("rtx-3090").rates["fp16"] == 71e12  # not 142 (fp16 sums), not 284 (sparse)
    assert find_card("rtx-4090").rates["fp16"] == 165.2e12
    assert find_card("a40").rates["fp16"] == 149.7e12  # not 299.4 (sparse)
    assert find_card("h100").rates["bf16"] == 989.4e12  # not 1979 (sparse)
    assert find_card("rtx-a4000").rates["fp16"] == 76.7e12  # the datasheet's 153.4 is sparse
    # 7424 CUDA cores / 128 = 58; the full AD104 has 60
    assert find_card("l4").sm_count == 58


def test_cards_without_tensor_cores_compute_fp16_on_fp32_units() -> None:
    for slug in ("titan-xp", "gtx-1080-ti"):
        card = find_card(slug)
        assert card.rates["fp16"] == card.rates["fp32"]
        assert card.rates["bf16"] is None
        assert card.rates["tf32"] is None
        assert card.rate("tf32") == card.rates["fp32"]
    v100 = find_card("v100-pcie-32gb")
    assert v100.rates["bf16"] is None
    assert v100.rate("tf32") == v100.rates["fp32"]


@pytest.mark.parametrize(
    ("slug", "gib"),
    [
        ("rtx-3090", 23.70), ("rtx-2080-ti", 10.73), ("gtx-1080-ti", 10.73), ("titan-xp", 11.71),
        ("rtx-3060-12gb", 11.71), ("v100-sxm2-32gb", 31.75), ("h200", 143155 / 1024),
    ],
)  # fmt: skip
def test_visible_memory_as_printed_or_measured(slug: str, gib: float) -> None:
    # never above what was seen, at most 1 MiB below
    assert 0 <= gib * GIB - find_card(slug).memory_visible <= MIB


@pytest.mark.parametrize("card", CARDS, ids=IDS)
def test_every_row_is_complete_and_plausible(card: Card) -> None:
    assert card.source
    assert card.verification
    assert card.visible_source
    assert card.visible_basis in ("measured", "printed", "derived")
    # ECC on GDDR6 takes 1/16, the driver up to 3 %: 0.91 at the least
    assert 0.90 < card.memory_visible / card.memory_nominal < 1
    assert card.memory_bandwidth
    assert 100e9 < card.memory_bandwidth < 10e12
    assert card.power_w
    assert 50 <= card.power_w <= 1200
    assert card.l2_bytes
    module = card.form_factor is not None and "module" in card.form_factor
    assert (card.slot_width is None) == module
    if card.compute_capability and card.compute_capability < (8, 0):
        assert card.rates["bf16"] is None
    else:
        assert card.rates["bf16"] == card.rates["fp16"]


def test_csv_has_no_stray_cells() -> None:
    text = resources.files("segplan.gpus").joinpath("catalog.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) >= 32
    for row in rows:
        assert None not in row
        assert None not in row.values()
        assert all(value == value.strip() for value in row.values())


def test_names_are_unique() -> None:
    owner: dict[str, str] = {}
    for card in CARDS:
        for spelling in (card.slug, card.name, *card.aliases):
            key = card_key(spelling)
            assert key
            assert owner.setdefault(key, card.slug) == card.slug, spelling


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("rtx-3090", "rtx-3090"), ("RTX 3090", "rtx-3090"), ("3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"), ("geforce rtx3090", "rtx-3090"),
        ("RTX 3090 24GB", "rtx-3090"), ("h200", "h200-sxm-141gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("h100", "h100-sxm5-80gb"), ("h100-sxm", "h100-sxm5-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"), ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("b200", "b200-hgx"), ("rtx-3060", "rtx-3060-12gb"), ("NVIDIA A40", "a40"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"), ("a100-sxm4-80gb", "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"), ("rtx-a6000", "rtx-a6000"),
        ("A6000", "rtx-a6000"), ("Tesla T4", "t4"), ("titan xp", "titan-xp"),
        # several cards share these: the one with the least memory
        ("a100", "a100-sxm4-40gb"), ("v100", "v100-sxm2-16gb"),
    ],
)  # fmt: skip
def test_spellings(text: str, slug: str) -> None:
    assert find_card(text).slug == slug


def test_unknown_card_suggests_the_nearest() -> None:
    with pytest.raises(CardError) as error:
        find_card("rtx-309")
    assert str(error.value) == (
        "no card is called 'rtx-309': did you mean rtx-3090? `segplan gpus` lists them."
    )
    with pytest.raises(CardError, match=r"no card is called 'zzzzqqq'\. `segplan gpus`"):
        find_card("zzzzqqq")
    with pytest.raises(CardError):
        find_card("")
    with pytest.raises(CardError) as error:
        find_card("x" * 100_000)
    assert len(str(error.value)) < 200


def test_extra_cards_win() -> None:
    mine = Card("rtx-3090", "RTX 3090", 24 * GIB, 20 * GIB)
    assert find_card("RTX 3090", [mine]) is mine
    assert find_card("rtx-4090", [mine]).slug == "rtx-4090"


def test_card_is_hashable_and_pickles() -> None:
    card = find_card("rtx-3090")
    assert pickle.loads(pickle.dumps(card)) == card
    assert len({card, pickle.loads(pickle.dumps(card))}) == 1
    assert catalogue() is catalogue()


def test_conservative_share_is_below_every_card_without_ecc_loss() -> None:
    ecc = {"t4", "a10", "l4", "a40", "l40", "l40s", "rtx-6000-ada"}
    share = min(c.memory_visible / c.memory_nominal for c in CARDS if c.slug not in ecc)
    assert share == pytest.approx(10.73 / 11, abs=1e-3)
    assert share >= CONSERVATIVE_VISIBLE


def test_parse_gpus() -> None:
    def kinds(text: str) -> list[tuple[str, str]]:
        return [(request.kind.value, request.text) for request in parse_gpus(text)]

    assert kinds("0") == [("local", "0")]
    assert kinds("all") == [("all", "all")]
    assert kinds("catalog") == [("catalog", "catalog")]
    assert kinds("rtx-3090, a40,,a40") == [("named", "rtx-3090"), ("named", "a40")]
    assert kinds("3090,1,my card.yaml") == [
        ("named", "3090"), ("local", "1"), ("named", "my card.yaml"),
    ]  # fmt: skip
    assert kinds("MIG-c0000000,GPU-1f") == [("local", "MIG-c0000000"), ("local", "GPU-1f")]
    assert parse_gpus("ALL")[0].kind is GpuKind.ALL
    with pytest.raises(RequestError, match="--gpu 0"):
        parse_gpus(" , ")
