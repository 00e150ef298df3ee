from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from segplan.errors import CardError
from segplan.gpus import (
    MigSlice,
    NvmlUnavailable,
    as_card,
    find_card,
    local_cards,
    match_catalogue,
    nvml,
    select,
)
from tests.gpus import fake_pynvml as fake
from tests.gpus.fake_pynvml import MIB, FakeGpu, FakeNvml, FakeProcess, mig_a100

Use = Callable[..., FakeNvml]

A40 = FakeGpu(name="NVIDIA A40", uuid="GPU-22222222-aaaa-bbbb-cccc-000000000000", total=46068 * MIB)
TWO = [FakeGpu(), A40]
SAME = [FakeGpu(), FakeGpu(uuid="GPU-12222222-aaaa-bbbb-cccc-000000000000")]


def test_one_card(use_nvml: Use) -> None:
    module = use_nvml()
    (card,) = local_cards()
    assert card.index == 0
    assert card.name == "NVIDIA GeForce RTX 3090"
    assert card.total_bytes == 24576 * MIB
    assert card.reserved_bytes == 308 * MIB
    assert card.visible_bytes == card.free_bytes == (24576 - 308) * MIB
    assert card.used_bytes == 0
    assert card.processes == ()
    assert card.driver == "580.159.04"
    assert card.cuda_driver_version == "13.0"
    assert card.compute_capability == (8, 6)
    assert (card.pcie_gen, card.pcie_width, card.pcie_gen_max, card.pcie_width_max) == (1, 8, 4, 16)
    assert card.power_limit_w == 350
    assert card.throttle_reasons == ()
    assert card.mig is None
    assert not card.spills
    assert card.order_certain
    assert module.open == 0  # shut down again


def test_busy_card_lists_its_processes(use_nvml: Use) -> None:
    busy = FakeGpu(
        used=9000 * MIB,
        processes=[FakeProcess(7, 8000 * MIB), FakeProcess(9, None)],
        graphics=[FakeProcess(7, 8000 * MIB), FakeProcess(3, 500 * MIB)],
        throttle=0x4 | 0x20,
    )
    use_nvml([busy], names={7: "/usr/bin/python3"})
    (card,) = local_cards()
    assert card.used_bytes == 9000 * MIB
    assert card.free_bytes == (24576 - 308 - 9000) * MIB
    assert card.processes is not None
    assert [(p.pid, p.name, p.used_bytes) for p in card.processes] == [
        (3, None, 500 * MIB), (7, "/usr/bin/python3", 8000 * MIB), (9, None, None),
    ]  # fmt: skip
    assert card.throttle_reasons == ("power limit", "temperature (software)")


def test_what_is_not_available_is_none_and_not_zero(use_nvml: Use) -> None:
    queries = {"memory", "processes", "capability", "power", "throttle", "pcie", "temperature"}
    use_nvml([FakeGpu(name=b"NVIDIA A10", broken=queries)])
    (card,) = local_cards()
    assert card.name == "NVIDIA A10"
    for value in (
        card.total_bytes, card.reserved_bytes, card.free_bytes, card.used_bytes, card.processes,
        card.visible_bytes, card.compute_capability, card.power_limit_w, card.temperature_c,
        card.throttle_reasons, card.pcie_gen, card.pcie_width_max,
    ):  # fmt: skip
        assert value is None
    with pytest.raises(CardError, match="YAML"):
        as_card(card)


def test_old_driver_without_the_second_memory_query(use_nvml: Use) -> None:
    use_nvml([FakeGpu(used=400 * MIB)], memory_v2=False)
    (card,) = local_cards()
    assert card.reserved_bytes is None
    assert card.free_bytes == (24576 - 400) * MIB
    # total alone would promise memory that torch does not see
    assert as_card(card).memory_visible == find_card("rtx-3090").memory_visible


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (fake.NVMLError(fake.LIBRARY_NOT_FOUND), "no NVIDIA driver is installed"),
        (fake.NVMLError(fake.DRIVER_NOT_LOADED), "the NVIDIA driver is not loaded"),
        (fake.NVMLError(fake.NO_PERMISSION), "no permission to use the NVIDIA driver"),
        (fake.NVMLError(18), "the NVIDIA driver and its library differ in version"),
        (OSError("cannot open shared object"), "cannot open shared object"),
    ],
)
def test_nvml_unavailable_says_why(use_nvml: Use, error: Exception, reason: str) -> None:
    use_nvml(init_error=error)
    with pytest.raises(NvmlUnavailable) as caught:
        local_cards()
    assert caught.value.reason.startswith(reason)
    with pytest.raises(CardError) as refused:
        select("0")
    assert str(refused.value).startswith(f"No NVIDIA GPU is usable here ({reason}")
    assert "name a card to predict instead, for example --gpu rtx-3090." in str(refused.value)
    assert refused.value.exit_code == 2


def test_binding_not_installed(use_nvml: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match="nvidia-ml-py is not installed"):
        local_cards()


def test_no_cards_is_not_unavailable(use_nvml: Use) -> None:
    use_nvml([])
    assert local_cards() == ()
    with pytest.raises(CardError, match=r"\(the driver shows no card\): name a card to predict"):
        select("0")


def test_card_kept_from_this_user(use_nvml: Use) -> None:
    use_nvml([FakeGpu(broken={"handle"}), A40])
    assert [card.name for card in local_cards()] == ["NVIDIA A40"]
    module = use_nvml([FakeGpu(broken={"handle"})])
    with pytest.raises(NvmlUnavailable, match="no permission"):
        local_cards()
    assert module.open == 0


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, [0, 1]),
        ("0", [0]),
        ("1", [1]),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("GPU-2222", [1]),
        ("GPU-22222222-aaaa-bbbb-cccc-000000000000,0", [1, 0]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),  # the first wrong entry ends the list, as in CUDA
        ("0,7,1", [0]),
        ("GPU-ffff", []),
        ("GPU-", []),  # the beginning of two
        ("1,1", [1]),
        ("nonsense", []),
    ],
)
def test_cuda_visible_devices(
    use_nvml: Use, monkeypatch: pytest.MonkeyPatch, variable: str | None, names: list[int]
) -> None:
    use_nvml(TWO)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    cards = local_cards()
    assert [card.nvml_index for card in cards] == names
    assert [card.index for card in cards] == list(range(len(names)))
    if names:
        assert select("0").nvml_index == names[0]
    else:
        with pytest.raises(CardError, match=r"CUDA_VISIBLE_DEVICES=.* leaves none"):
            select("0")


def test_order_is_certain_only_where_cuda_cannot_reorder(
    use_nvml: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_nvml(TWO)
    assert [card.order_certain for card in local_cards()] == [False, False]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert [card.order_certain for card in local_cards()] == [True, True]
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    use_nvml(SAME)
    assert [card.order_certain for card in local_cards()] == [True, True]


def test_select(use_nvml: Use) -> None:
    use_nvml(SAME)
    assert select("1").nvml_index == 1
    assert select(" 00 ").nvml_index == 0
    assert select(SAME[1].uuid.upper()).nvml_index == 1
    assert select("GPU-12").nvml_index == 1
    assert select("12222222-a").nvml_index == 1
    with pytest.raises(CardError, match=r"GPU-11111111.*, GPU-12222222.*write more"):
        select("GPU-1")
    with pytest.raises(CardError, match="no GPU here has a UUID beginning with 'GPU-9'"):
        select("GPU-9")
    with pytest.raises(CardError, match="no GPU 3: 2 GPUs are usable here: use --gpu 0 to --gpu 1"):
        select("3")
    with pytest.raises(CardError):
        select("")


def test_select_says_how_many_there_are(use_nvml: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvml()
    with pytest.raises(CardError, match=r"there is no GPU 3: 1 GPU is usable here: use --gpu 0\."):
        select("3")
    use_nvml(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(CardError, match=r"1 GPU is usable here \(CUDA_VISIBLE_DEVICES=1\)"):
        select("1")


def test_mig(use_nvml: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use_nvml([mig_a100()])
    parent, first, second = local_cards()
    assert parent.mig == "parent"
    assert parent.index == 0
    assert isinstance(first.mig, MigSlice)
    assert first.mig.profile == "3g.20gb"
    assert first.mig.memory_bytes == 19968 * MIB
    assert first.mig.sm_count == 42
    assert first.mig.parent_uuid == parent.uuid
    assert first.index is None
    with pytest.raises(CardError) as error:
        select("0")
    assert first.uuid in str(error.value)
    assert second.uuid in str(error.value)
    assert "name one of them" in str(error.value)
    assert select("MIG-c").uuid == first.uuid
    assert match_catalogue(first) is None
    card = as_card(first)
    assert card.memory_visible == 19968 * MIB
    assert set(card.rates.values()) == {None}  # no share of the whole card's speed is assumed
    assert card.compute_capability == (8, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second.uuid)
    (only,) = local_cards()
    assert (only.index, only.uuid) == (0, second.uuid)
    assert select("0").uuid == second.uuid


def test_mig_without_slices(use_nvml: Use) -> None:
    parent = mig_a100()
    parent.slices = []
    use_nvml([parent])
    with pytest.raises(CardError, match="has no slice"):
        select("0")


def test_match_needs_name_and_memory(use_nvml: Use) -> None:
    use_nvml(
        [
            FakeGpu(),
            A40,
            FakeGpu(name="NVIDIA GeForce RTX 3060", total=8192 * MIB, uuid="GPU-3"),
            FakeGpu(name="NVIDIA H200", total=143771 * MIB, reserved=615 * MIB, uuid="GPU-4"),
            FakeGpu(name="NVIDIA A100-SXM4-80GB", total=81920 * MIB, uuid="GPU-5"),
            FakeGpu(name="NVIDIA GeForce RTX 3080 Laptop GPU", total=16384 * MIB, uuid="GPU-6"),
        ]
    )
    matches = [match_catalogue(card) for card in local_cards()]
    assert [card.slug if card else None for card in matches] == [
        "rtx-3090", "a40", None, "h200-sxm-141gb", "a100-sxm4-80gb", None,
    ]  # fmt: skip


def test_as_card_takes_memory_and_power_from_the_driver(use_nvml: Use) -> None:
    # measured on an H200: total 143771 MiB, reserved 615, torch's total_memory is the difference
    h200 = FakeGpu(
        name="NVIDIA H200", total=143771 * MIB, reserved=615 * MIB, power_mw=600_000, uuid="GPU-4"
    )
    unknown = FakeGpu(name="NVIDIA Secret 1", total=8192 * MIB, uuid="GPU-5")
    use_nvml([h200, unknown])
    known, other = (as_card(card) for card in local_cards())
    assert known.slug == "h200-sxm-141gb"
    assert known.memory_visible == 143156 * MIB
    assert known.visible_basis == "driver"
    assert known.power_w == 600
    assert known.rates == find_card("h200").rates
    assert other.slug == "secret-1"
    assert other.memory_visible == (8192 - 308) * MIB
    assert other.compute_capability == (8, 6)
    assert other.memory_bandwidth is None


def test_windows_and_wsl2_spill(
    use_nvml: Use, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_nvml([FakeGpu(driver_model=0)])
    assert local_cards()[0].wddm
    assert local_cards()[0].spills
    use_nvml([FakeGpu(driver_model=1)])  # TCC does not spill
    assert not local_cards()[0].spills
    release = tmp_path / "osrelease"
    release.write_text("5.15.167.4-microsoft-standard-WSL2\n")
    monkeypatch.setattr(nvml, "_OS_RELEASE", release)
    use_nvml()
    assert local_cards()[0].wsl2
    assert local_cards()[0].spills
