"""`PYTORCH_ALLOC_CONF` and `PYTORCH_CUDA_ALLOC_CONF`: text to allocator settings.

Follows `c10/core/AllocatorConfig.cpp` and `c10/cuda/CUDAAllocatorConfig.{h,cpp}`: the
same tokens, bounds and order of evaluation. Where both variables are set torch reads
`PYTORCH_CUDA_ALLOC_CONF` and ignores the other (`AcceleratorAllocatorConfig::instance`;
checked with torch 2.13).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from segplan.errors import RequestError
from segplan.memory.allocator import DEFAULTS, LARGE_BUFFER, MIB, Settings

VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables in the order in which torch looks at them."""

_INTERVALS: Final = 16  # `kRoundUpPowerOfTwoIntervals`: 1 MiB to 64 GiB

# Keys that torch knows and that change nothing about GPU memory as modelled here.
_HARMLESS: Final = frozenset(
    {
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_free_catch_all",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
    }
)


@dataclass(frozen=True)
class AllocConf:
    """A parsed configuration.

    Attributes:
        settings: what the replay honours.
        memory_fraction: `per_process_memory_fraction`, the share of the card's memory
            torch allows itself; None: not set.
        warnings: sentences about what was not understood or is not modelled.
    """

    settings: Settings = DEFAULTS
    memory_fraction: float | None = None
    warnings: tuple[str, ...] = ()


def settings_from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Allocator settings of this environment (`os.environ`), as torch would read them.

    Raises:
        RequestError: a value that torch would refuse.
    """
    return conf_from_environment(environment).settings


def conf_from_environment(environment: Mapping[str, str] | None = None) -> AllocConf:
    """The same with warnings, one of them if both variables are set and differ.

    Raises:
        RequestError: a value that torch would refuse.
    """
    environment = os.environ if environment is None else environment
    given = [name for name in VARIABLES if name in environment]
    if not given:
        return AllocConf()
    conf = parse_alloc_conf(environment[given[0]], given[0])
    if len({environment[name] for name in given}) > 1:
        note = f"{given[0]} and {given[1]} are both set and differ: torch reads {given[0]}."
        conf = AllocConf(conf.settings, conf.memory_fraction, (note, *conf.warnings))
    return conf


def parse_alloc_conf(text: str, name: str = "PYTORCH_ALLOC_CONF") -> AllocConf:
    """Settings from text such as "expandable_segments:True,max_split_size_mb:128".

    Args:
        text: pairs `key:value` separated by commas; lists in square brackets.
        name: of the variable, for messages.

    Raises:
        RequestError: text or value that torch would refuse; the message names the fix.
    """
    return _Parser(text, name).parse()


class _Parser:
    """Reads pairs first, so that `large_segment_size_mb` counts wherever it stands."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s", "", text))
        self.warnings: list[str] = []

    def parse(self) -> AllocConf:
        pairs = self._pairs()
        large = LARGE_BUFFER
        for key, value in pairs:
            if key == "large_segment_size_mb":
                large = self._whole(key, value) * MIB
                if large <= 10 * MIB:
                    self._refuse(key, value, "more than 10")
        expandable, threshold = False, 0.0
        split = rounding = None
        divisions: int | Mapping[int, int] | None = None
        fraction: float | None = None
        for key, value in pairs:
            if key == "large_segment_size_mb" or key in _HARMLESS:
                continue
            if key == "expandable_segments":
                if value not in ("True", "False"):
                    self._refuse(key, value, "True or False")
                expandable = value == "True"
            elif key == "max_split_size_mb":
                split = self._megabytes(key, value, large)
            elif key == "max_non_split_rounding_mb":
                rounding = self._megabytes(key, value, large)
            elif key == "garbage_collection_threshold":
                threshold = self._number(key, value)
                if not 0 < threshold < 1:
                    self._refuse(key, value, "a number between 0 and 1, both excluded")
            elif key == "per_process_memory_fraction":
                fraction = self._number(key, value)
                if not 0 <= fraction <= 1:
                    self._refuse(key, value, "a number from 0 to 1")
            elif key == "roundup_power2_divisions":
                divisions = self._divisions(key, value)
            elif key == "backend":
                self._backend(key, value)
            else:
                self.warnings.append(
                    f"{self.name}: '{key}' is no setting known here and is left out; "
                    "torch refuses to start with settings that it does not know."
                )
        settings = Settings(expandable, split, divisions, large, threshold, rounding)
        return AllocConf(settings, fraction, tuple(self.warnings))

    def _pairs(self) -> list[tuple[str, str | list[str]]]:
        """(key, value): the value is a word, or the tokens between square brackets."""
        pairs: list[tuple[str, str | list[str]]] = []
        tokens = self.tokens
        i = 0
        while i < len(tokens):
            key = tokens[i]
            if key in ",:[]" or i + 2 >= len(tokens) or tokens[i + 1] != ":":
                self._malformed(key)
            i += 2
            value: str | list[str] = tokens[i]
            if value == "[":
                if "]" not in tokens[i:]:
                    self._malformed(key)
                end = tokens.index("]", i)
                value = tokens[i + 1 : end]
                i = end
            elif tokens[i] in ",:]":
                self._malformed(key)
            pairs.append((key, value))
            i += 1
            if i < len(tokens):
                if tokens[i] != "," or i + 1 == len(tokens):
                    self._malformed(key)
                i += 1
        return pairs

    def _divisions(self, key: str, value: str | list[str]) -> int | Mapping[int, int] | None:
        """`parseRoundUpPower2Divisions`: one number, or [interval in MiB:divisions,...,>:rest]."""
        if isinstance(value, str):
            divisions = self._whole(key, value)
            if not _is_power_of_two(divisions):
                self._refuse(key, value, "a power of two")
            return divisions if divisions > 1 else None
        table = [0] * _INTERVALS
        last: int | None = None
        for i in range(0, len(value), 4):
            entry = value[i : i + 4]
            if len(entry) < 3 or entry[1] != ":" or entry[3:] not in ([], [","]):
                self._refuse(key, value, "a list like [256:1,512:2,1024:4,>:8]")
            divisions = self._whole(key, entry[2])
            if divisions and not _is_power_of_two(divisions):
                self._refuse(key, value, "divisions that are powers of two, or 0 for none")
            if entry[0] == ">":
                start = (last or 0) + 1
                table[start:] = [divisions] * (_INTERVALS - start)
                continue
            boundary = self._whole(key, entry[0])
            if not _is_power_of_two(boundary):
                self._refuse(key, value, "intervals that are powers of two, in MiB")
            index = min(boundary.bit_length() - 1, _INTERVALS - 1)
            if last is None:  # the first interval named also rules all below it
                table[:index] = [divisions] * index
            table[index] = divisions
            last = index
        return {MIB << i: divisions for i, divisions in enumerate(table) if divisions > 1} or None

    def _backend(self, key: str, value: str | list[str]) -> None:
        if value in ("cudaMallocAsync", "hipMallocAsync"):
            self.warnings.append(
                f"{self.name}: backend:{value} is not modelled; numbers are for the native "
                "allocator, which keeps more and fragments differently."
            )
        elif value != "native":
            self._refuse(key, value, "native or cudaMallocAsync")

    def _megabytes(self, key: str, value: str | list[str], least: int) -> int:
        size = self._whole(key, value) * MIB
        if size < least:
            self._refuse(key, value, f"at least {least // MIB} (the segments of the large pool)")
        return size

    def _whole(self, key: str, value: str | list[str]) -> int:
        """A whole number; stricter than torch, which reads "128MB" as 128 and -1 as huge."""
        if isinstance(value, list) or not re.fullmatch(r"\d+", value, re.ASCII):
            self._refuse(key, value, "a whole number")
        return int(value)

    def _number(self, key: str, value: str | list[str]) -> float:
        try:
            return float("" if isinstance(value, list) else value)
        except ValueError:
            self._refuse(key, value, "a number")

    def _refuse(self, key: str, value: str | list[str], wanted: str) -> NoReturn:
        shown = value if isinstance(value, str) else f"[{''.join(value)}]"
        raise RequestError(f"{self.name}: {key}:{shown} is not possible; write {wanted}.")

    def _malformed(self, at: str) -> NoReturn:
        raise RequestError(
            f"{self.name} cannot be read at '{at}'; write pairs like "
            "expandable_segments:True,max_split_size_mb:128."
        )


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
