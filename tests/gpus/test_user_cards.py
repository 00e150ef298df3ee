from __future__ import annotations

from pathlib import Path

import pytest

from segplan.errors import CardError, ConfigError
from segplan.gpus import find_card, load_cards
from segplan.gpus import user_cards as module
from segplan.units import GIB

FULL = """
name: Lab card
memory_gib: 24
visible_gib: 23.6
aliases: [labcard, "the grey one"]
bandwidth_gbs: 936
fp32_tflops: 35.6
fp16_tflops: 71
bf16_tflops: 71
compute_capability: 8.6
sm_count: 82
l2_mib: 6
power_w: 350
slot_width: 3
source: the label
"""


def write(tmp_path: Path, text: str | bytes, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_full_card(tmp_path: Path) -> None:
    (card,) = load_cards(write(tmp_path, FULL))
    assert card.slug == "lab-card"
    assert card.memory_nominal == 24 * GIB
    assert card.memory_visible == int(23.6 * GIB)
    assert card.visible_basis == "given"
    assert card.memory_bandwidth == 936e9
    assert card.rates["fp16"] == 71e12
    assert card.rates["tf32"] is None
    assert card.compute_capability == (8, 6)
    assert card.l2_bytes == 6 * 2**20
    assert card.source == "the label"


def test_name_and_memory_are_enough(tmp_path: Path) -> None:
    (card,) = load_cards(write(tmp_path, "name: 9999\nmemory_gib: 100"))
    assert card.slug == "9999"
    assert card.memory_visible == int(100 * 0.975 * GIB)
    assert card.visible_basis == "derived"
    assert card.power_w is None
    assert set(card.rates.values()) == {None}


def test_path_is_a_card_name(tmp_path: Path) -> None:
    assert find_card(str(write(tmp_path, FULL, "x.YML"))).slug == "lab-card"
    two = write(
        tmp_path, "cards:\n- {name: one, memory_gib: 8}\n- {name: two, memory_gib: 9}", "t.yaml"
    )
    assert [card.slug for card in load_cards(two)] == ["one", "two"]
    assert find_card("two", load_cards(two)).memory_nominal == 9 * GIB
    with pytest.raises(CardError, match="describes 2 cards: name one of one, two"):
        find_card(str(two))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nmemory_gb: 24", "a card has no 'memory_gb': did you mean memory_gib"),
        ("name: a\nmemory_gib: 1\nqqqqq: 24", "a card has no 'qqqqq': known are name, memory_gib"),
        ("name: a\nmemory_gib: 1\n? [1, 2]\n: 3", "no valid YAML"),
        ("memory_gib: 24", "'name' is missing"),
        ("name: a", "'memory_gib' is missing"),
        ("name: '...'\nmemory_gib: 1", "must hold letters or digits"),
        ("name: [a]\nmemory_gib: 1", "'name' must be text, not a list"),
        ("name: \"a\\x1b[31m\"\nmemory_gib: 1", "printable"),
        ("name: a\nmemory_gib: much", "'memory_gib' must be a number, not text"),
        ("name: a\nmemory_gib: true", "'memory_gib' must be a number, not true or false"),
        ("name: a\nmemory_gib: .nan", "'memory_gib' must be between"),
        ("name: a\nmemory_gib: .inf", "'memory_gib' must be between"),
        ("name: a\nmemory_gib: -24", "'memory_gib' must be between"),
        ("name: a\nmemory_gib: 0", "'memory_gib' must be between"),
        ("name: a\nmemory_gib: 1" + "0" * 400, "'memory_gib' must be between"),
        ("name: a\nmemory_gib: 24\nvisible_gib: 25", "torch never sees more"),
        ("name: a\nmemory_gib: 1\nsm_count: 1.5", "whole number"),
        ("name: a\nmemory_gib: 1\ncompute_capability: new", "written like"),
        ("name: a\nmemory_gib: 1\naliases: b", "'aliases' must be a list"),
        ("name: a\nmemory_gib: 1\naliases: ['--']", "letters or digits"),
        ("[1, 2]", "keys and values"),
        ("", "keys and values"),
        ("cards: []", "must be a list of cards"),
        ("cards: 3", "must be a list of cards"),
        ("cards: []\nname: a", "beside 'cards'"),
        ("cards: [{name: a, memory_gib: 1}, {name: A, memory_gib: 2}]", "card 2: 'A' has a name"),
        ("cards: [{name: a, memory_gib: 1}, 3]", "card 2: a card is written as"),
        ("name: a\nmemory_gib: [1", "no valid YAML in line 2"),
        ("name: a\n\tmemory_gib: 1", "no valid YAML in line 2"),
        ("name: 2024-13-45\nmemory_gib: 1", "no valid YAML"),
        (b"name: \xff\xfe", "no valid YAML"),
        ("[" * 60_000, "no valid YAML"),
    ],
)  # fmt: skip
def test_mistakes_name_the_file_and_the_fix(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_cards(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert error.value.exit_code == 2


def test_code_in_yaml_is_never_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    for text in (
        f"!!python/object/apply:os.mkdir ['{proof}']",
        f"name: !!python/object/new:os.mkdir ['{proof}']\nmemory_gib: 1",
        "!!python/object:segplan.gpus.card.Card {}",
    ):
        with pytest.raises(ConfigError, match="no valid YAML in line 1"):
            load_cards(write(tmp_path, text))
    assert not proof.exists()


def test_anchors_cannot_blow_up(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError) as error:
        load_cards(write(tmp_path, "\n".join([*lines, "name: *a11", "memory_gib: 1"])))
    assert len(str(error.value)) < 1000
    nested = "\n".join(lines[1:]).replace("a0", "zz")
    text = f"name: &zz [x]\n{nested}"
    with pytest.raises(ConfigError):
        load_cards(write(tmp_path, text))


def test_files_that_are_no_card_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_cards(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="no regular file"):
        load_cards(tmp_path)
    big = write(tmp_path, b"#" * (module.MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than 64 KiB"):
        load_cards(big)
    many = "cards:\n" + "- {name: a, memory_gib: 1}\n" * (module.MAX_CARDS + 1)
    with pytest.raises(ConfigError, match="at most 200"):
        load_cards(write(tmp_path, many))


def test_documented_keys_are_the_accepted_ones() -> None:
    assert module.__doc__ is not None
    documented = {
        line.split(":")[0].strip()
        for line in module.__doc__.splitlines()
        if line.startswith("    ") and ":" in line
    }
    assert documented == set(module.KEYS)
