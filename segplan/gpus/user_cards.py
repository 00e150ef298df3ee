"""The user's own cards, described in a YAML file.

One card is a mapping; several are a list under `cards`. Only `name` and `memory_gib` are needed:

    name: Lab card            # required
    memory_gib: 24            # required: nominal size
    visible_gib: 23.6         # what torch sees; 0.975 of memory_gib where left out
    aliases: [labcard]
    bandwidth_gbs: 936        # 10^9 bytes per second
    fp32_tflops: 35.6         # dense, 10^12 FLOP per second
    tf32_tflops: 35.6
    fp16_tflops: 71           # dense, with fp32 accumulation
    bf16_tflops: 71
    compute_capability: "8.6"
    sm_count: 82
    l2_mib: 6
    power_w: 350
    slot_width: 3
    form_factor: PCIe active
    source: where the numbers come from
"""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from typing import Any

from segplan.errors import ConfigError
from segplan.gpus.card import CONSERVATIVE_VISIBLE, Card, card_key, slugify
from segplan.units import GIB, MIB

MAX_FILE_BYTES = 64 * 2**10
MAX_CARDS = 200
MAX_TEXT = 200

_NUMBERS = {  # key: (least, most)
    "memory_gib": (0.5, 10_000),
    "visible_gib": (0.25, 10_000),
    "bandwidth_gbs": (1, 1e6),
    "fp32_tflops": (0.01, 1e6),
    "tf32_tflops": (0.01, 1e6),
    "fp16_tflops": (0.01, 1e6),
    "bf16_tflops": (0.01, 1e6),
    "sm_count": (1, 10_000),
    "l2_mib": (0.01, 1e5),
    "power_w": (1, 1e5),
    "slot_width": (0.5, 16),
}
_TEXTS = ("name", "form_factor", "source")
KEYS = tuple(
    dict.fromkeys(("name", "memory_gib", *_NUMBERS, "compute_capability", "aliases", *_TEXTS))
)
"""Keys a card may have."""


def is_card_file(text: str) -> bool:
    """Whether a `--gpu` text names a YAML file rather than a card."""
    return text.lower().endswith((".yaml", ".yml"))


def load_cards(path: Path) -> tuple[Card, ...]:
    """The cards a YAML file describes (see the module's documentation for its keys).

    Raises:
        ConfigError: the file cannot be read, is too large, is no YAML, or holds an unknown key
            or a wrong value; the message names the file and the fix.
    """
    data = _read(path)
    listed = isinstance(data, dict) and "cards" in data
    if listed and len(data) > 1:
        other = _short(next(key for key in data if key != "cards"))
        raise ConfigError(f"{path}: beside 'cards' there can be nothing else, not '{other}'.")
    items = data["cards"] if listed else [data]
    if not isinstance(items, list) or not items:
        raise ConfigError(f"{path}: 'cards' must be a list of cards.")
    if len(items) > MAX_CARDS:
        raise ConfigError(f"{path}: {len(items)} cards; at most {MAX_CARDS} can be in one file.")
    cards: list[Card] = []
    seen: dict[str, str] = {}
    for number, item in enumerate(items, start=1):
        where = f"{path}: card {number}" if len(items) > 1 else str(path)
        card = _card(item, where, str(path))
        for key in {card_key(spelling) for spelling in (card.slug, *card.aliases)}:
            if key in seen:
                raise ConfigError(f"{where}: '{card.name}' has a name {seen[key]} has already.")
            seen[key] = f"'{card.name}'"
        cards.append(card)
    return tuple(cards)


def _read(path: Path) -> Any:
    import yaml

    try:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such file.")
        if not path.is_file():
            raise ConfigError(f"{path}: this is no regular file.")
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: cannot be read ({error}).") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{path}: larger than {MAX_FILE_BYTES // 1024} KiB: this is no card file."
        )
    try:
        return yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: no valid YAML{line}: {error.problem}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{path}: no valid YAML: {reason}.") from None


def _card(item: Any, where: str, file: str) -> Card:
    if not isinstance(item, dict):
        raise ConfigError(
            f"{where}: a card is written as keys and values, such as 'name: my card'."
        )
    for key in item:
        if key not in KEYS:
            shown = _short(key)
            close = difflib.get_close_matches(shown, KEYS, 1)
            hint = f": did you mean {close[0]}?" if close else f": known are {', '.join(KEYS)}."
            raise ConfigError(f"{where}: a card has no '{shown}'{hint}")
    for key in ("name", "memory_gib"):
        if item.get(key) is None:
            raise ConfigError(f"{where}: '{key}' is missing.")
    texts = {key: _text(item.get(key), key, where) for key in _TEXTS}
    numbers = {key: _number(item.get(key), key, where) for key in _NUMBERS}
    name = texts["name"] or ""
    slug = slugify(name)
    if not slug:
        raise ConfigError(f"{where}: 'name' must hold letters or digits.")
    nominal_gib = numbers["memory_gib"] or 0.0
    visible_gib = numbers["visible_gib"]
    if visible_gib is not None and visible_gib > nominal_gib:
        raise ConfigError(f"{where}: 'visible_gib' is above 'memory_gib': torch never sees more.")
    given = visible_gib is not None
    visible_gib = visible_gib if visible_gib is not None else nominal_gib * CONSERVATIVE_VISIBLE
    capability = _capability(item.get("compute_capability"), where)
    if capability is not None and capability < (7, 0) and numbers["fp16_tflops"] is None:
        numbers["fp16_tflops"] = numbers["fp32_tflops"]  # no tensor cores before 7.0
    return Card(
        slug=slug,
        name=name,
        memory_nominal=int(nominal_gib * GIB),
        memory_visible=int(visible_gib * GIB),
        aliases=_aliases(item.get("aliases"), where),
        memory_bandwidth=_scaled(numbers["bandwidth_gbs"], 1e9),
        rates={
            dtype: _scaled(numbers[f"{dtype}_tflops"], 1e12)
            for dtype in ("fp32", "tf32", "fp16", "bf16")
        },
        compute_capability=capability,
        sm_count=_whole(numbers["sm_count"]),
        l2_bytes=_whole(_scaled(numbers["l2_mib"], MIB)),
        power_w=numbers["power_w"],
        slot_width=numbers["slot_width"],
        form_factor=texts["form_factor"],
        visible_basis="given" if given else "derived",
        visible_source=file if given else f"{CONSERVATIVE_VISIBLE} of the nominal size",
        source=texts["source"] or file,
        verification="given by the user",
    )


def _number(value: Any, key: str, where: str) -> float | None:
    if value is None:
        return None
    least, most = _NUMBERS[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{where}: '{key}' must be a number, not {_kind(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not least <= number <= most:
        raise ConfigError(f"{where}: '{key}' must be between {least:g} and {most:g}.")
    if key == "sm_count" and number != int(number):
        raise ConfigError(f"{where}: '{key}' must be a whole number.")
    return number


def _text(value: Any, key: str, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = _short(value)  # `name: 3090` is a number to YAML
    if not isinstance(value, str):
        raise ConfigError(f"{where}: '{key}' must be text, not {_kind(value)}.")
    text = " ".join(value.split())
    if not text or len(text) > MAX_TEXT or not text.isprintable():
        raise ConfigError(f"{where}: '{key}' must be 1 to {MAX_TEXT} printable characters.")
    return text


def _aliases(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > 50:
        raise ConfigError(f"{where}: 'aliases' must be a list of names.")
    aliases = tuple(_text(item, "aliases", where) or "" for item in value)
    if not all(card_key(alias) for alias in aliases):
        raise ConfigError(f"{where}: each of 'aliases' must hold letters or digits.")
    return aliases


def _capability(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    match = None
    if isinstance(value, (str, float, int)) and not isinstance(value, bool):
        match = re.fullmatch(r"(\d{1,2})(?:\.(\d))?", _short(value))
    if match is None:
        raise ConfigError(f"{where}: 'compute_capability' is written like \"8.6\".")
    return int(match[1]), int(match[2] or 0)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _short(value: Any) -> str:
    """A scalar as text, cut; never the text of a container, which anchors can make enormous."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a very large number"
    if not isinstance(value, (str, int, float, bool)) and value is not None:
        return _kind(value)
    return str(value)[:60]


def _kind(value: Any) -> str:
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return kinds.get(type(value), f"a {type(value).__name__}")
