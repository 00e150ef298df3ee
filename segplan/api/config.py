"""Configuration files: YAML with the keys of the command line, or a preset by its name.

One schema for every command: what is trained and where (the options), and the sections `schedule`
(how often) and `dataset` (on which data).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from segplan.errors import ConfigError, RequestError
from segplan.units import Patch, parse_bytes, parse_patch

MAX_FILE_BYTES = 2**20
"""A larger file is no configuration."""

MAX_DEPTH = 20
"""Deeper nesting is no configuration either, and would exhaust the parser's stack."""

_TAG = "tag:yaml.org,2002:"


def to_patch(value: Any) -> Any:
    """96, "128x128x64" or [128, 128, 64]."""
    if isinstance(value, str):
        return parse_patch(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return parse_patch(str(value))
    if isinstance(value, list) and len(value) == 3 and all(type(v) is int for v in value):
        return parse_patch("x".join(str(v) for v in value))
    raise RequestError(f"{value!r} is no patch size: write it like 96 or 128x128x64 (H x W x D).")


def _to_bytes(value: Any) -> Any:
    """ "23000MiB", or a bare number of MiB."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RequestError(f"{value!r} is no memory size: write it like 512MiB or 23GiB.")
    return parse_bytes(str(value), default_unit="MiB")


def _to_names(value: Any) -> Any:
    """ "a,b,c" or a list of names."""
    return [v.strip() for v in value.split(",")] if isinstance(value, str) else value


def _to_text(value: Any) -> Any:
    """A card's index may be written without quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_Patch = Annotated[Patch, BeforeValidator(to_patch)]
_Bytes = Annotated[int, BeforeValidator(_to_bytes)]
_Names = Annotated[list[Annotated[str, BeforeValidator(_to_text)]], BeforeValidator(_to_names)]
_Name = Annotated[str, BeforeValidator(_to_text)]
_Count = Annotated[int, Field(ge=1)]
_Number = Annotated[int, Field(ge=1, le=10**9)]
_Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]

MAX_SIDE = 10**5
"""Voxels along one axis; a volume beyond is a mistake in its file."""

_SECTION = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


def _to_spacing(value: Any) -> Any:
    """Three numbers above 0 (H, W, D)."""
    numbers = value if isinstance(value, (list, tuple)) else ()
    good = [v for v in numbers if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(good) != 3 or len(numbers) != 3 or not all(0 < v < math.inf for v in good):
        raise RequestError(
            f"{value!r} is no spacing: write it like [1.5, 1.5, 2.0] (millimetres along H, W, D)."
        )
    return tuple(float(v) for v in good)


def _to_volume(value: Any) -> Any:
    """A shape, written as a patch is."""
    try:
        shape: Patch = to_patch(value)
    except RequestError:
        shape = (0, 0, 0)
    if not all(1 <= side <= MAX_SIDE for side in shape):
        raise RequestError(f"{_short(value)} is no shape: write it like 512x512x200 (H x W x D).")
    return shape


def _to_disk_bytes(value: Any) -> Any:
    """ "50MB", or a bare number of bytes."""
    good = isinstance(value, (str, int)) and not isinstance(value, bool)
    try:
        found = parse_bytes(str(value)) if good else 0
    except (RequestError, OverflowError):
        found = 0
    if not 1 <= found <= 10**15:
        raise RequestError(f"{_short(value)} is no size: write it in bytes, or like 50MB.")
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_Spacing = Annotated[tuple[float, float, float], BeforeValidator(_to_spacing)]
_Volume = Annotated[Patch, BeforeValidator(_to_volume)]
_DiskBytes = Annotated[int, BeforeValidator(_to_disk_bytes)]


class ValidationSection(BaseModel):
    """`schedule.validation`: whole volumes by sliding window (`segplan.schedule.Validation`)."""

    model_config = _SECTION

    cases: _Number | None = None
    every: _Number | None = None
    shape: _Volume | None = None
    roi: _Patch | None = None
    overlap: Annotated[float, Field(ge=0, lt=1)] | None = None
    sw_batch_size: _Number | None = None
    passes: _Number | None = None
    seconds_per_volume: _Positive | None = None


class ScheduleSection(BaseModel):
    """`schedule`: epochs of one of two kinds (`segplan.schedule.Schedule`)."""

    model_config = _SECTION

    epochs: _Number | None = None
    iterations: _Number | None = None
    validation_iterations: Annotated[int, Field(ge=0, le=10**9)] | None = None
    cases: _Number | None = None
    num_samples: _Number | None = None
    drop_last: bool | None = None
    folds: _Number | None = None
    checkpoint_every: _Number | None = None
    validation: ValidationSection | None = None


class DatasetSection(BaseModel):
    """`dataset`: what is trained on (`segplan.schedule.DatasetFacts`)."""

    model_config = _SECTION

    cases: _Number | None = None
    channels: _Number | None = None
    classes: _Number | None = None
    shape: _Volume | None = None
    spacing: _Spacing | None = None
    bytes_per_case: _DiskBytes | None = None
    foreground: Annotated[float, Field(ge=0, le=1)] | None = None
    path: str | None = None


SECTIONS = ("name", "source", "schedule", "dataset")
"""Keys that are no option of a command."""


class Config(BaseModel):
    """What a configuration file may hold; a key that is absent is None and keeps its default.

    `patch` and `batch` are those of the training step. `segplan fit` looks at `patches`, or at
    `patch` where there is only that, and finds the largest batch whatever `batch` says.
    """

    model_config = _SECTION

    model: str | None = None
    model_args: dict[str, Any] | None = None
    in_channels: _Count | None = None
    out_channels: _Count | None = None
    patch: _Patch | None = None
    patches: list[_Patch] | None = None
    batch: _Count | None = None
    precision: Literal["fp32", "tf32", "fp16", "bf16"] | None = None
    optimizer: Literal["adamw", "adam", "sgd"] | None = None
    loss: Literal["dicece", "dice", "ce", "dicefocal"] | None = None
    checkpointing: bool | None = None
    memory_format: Literal["contiguous", "channels_last_3d"] | None = None
    cudnn_benchmark: bool | None = None
    zero_grad: Literal["before_forward", "before_backward"] | None = None
    grad_accumulation: _Count | None = None
    grad_clip: Annotated[float, Field(gt=0)] | None = None
    gpu: _Name | None = None
    gpus: _Names | None = None
    emulate: Annotated[_Name | None, Field(alias="as")] = None
    allocator_limit: _Bytes | None = None
    reserve: _Bytes | None = None
    max_batch: _Count | None = None
    store: str | None = None
    share: bool | None = None
    soak: Annotated[int, Field(ge=0)] | None = None
    name: str | None = None
    source: str | list[str] | None = None
    schedule: ScheduleSection | None = None
    dataset: DatasetSection | None = None

    def values(self) -> dict[str, Any]:
        """The options that were given, under the names of the Python parameters.

        `dataset.channels` and `dataset.classes` stand in for `in_channels` and `out_channels`.
        """
        found = {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name not in SECTIONS and getattr(self, name) is not None
        }
        if self.dataset is not None:
            for key, fact in (("in_channels", "channels"), ("out_channels", "classes")):
                if getattr(self.dataset, fact) is not None:
                    found.setdefault(key, getattr(self.dataset, fact))
        return found


def preset_names() -> list[str]:
    """The names of the presets that come with segplan."""
    names = (entry.name for entry in _preset_folder().iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_config(name_or_path: str | Path) -> Config:
    """The configuration of a file, or of a preset by its name (like btcv-swinunetr).

    A path that exists wins over a preset of that name.

    Raises:
        ConfigError: there is no such file or preset, it cannot be read, it is no YAML, or it
            holds a key or a value that it should not; the message names file, line and fix.
    """
    path = Path(name_or_path)
    text_name = str(name_or_path)
    if path.is_file():
        return parse_config(read_text(path), text_name)
    presets = preset_names()
    if text_name in presets:
        text = (_preset_folder() / f"{text_name}.yaml").read_text(encoding="utf-8")
        return parse_config(text, f"preset {text_name}")
    if path.exists():
        raise ConfigError(f"{text_name} is no file: --config takes a YAML file or a preset.")
    stem = path.name.removesuffix(".yaml").removesuffix(".yml")
    close = difflib.get_close_matches(stem, presets, 1, cutoff=0.5)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigError(
        f"there is no file or preset '{text_name}'{hint}; presets are {', '.join(presets)}."
    )


def parse_config(text: str, where: str) -> Config:
    """The configuration in a YAML text; `where` names it in messages.

    Raises:
        ConfigError: as `load_config`.
    """
    try:
        refuse_bombs(text, where)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is None or tree.tag == _TAG + "null":
            return Config()
        if not isinstance(tree, yaml.MappingNode):
            raise ConfigError(f"{where} holds no keys: write one 'key: value' a line.")
        lines = _lines_of(tree, where)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{where}{line} is broken YAML: {error.problem}.") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise ConfigError(f"{where} is broken YAML: {str(error).splitlines()[0]}.") from error
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, where, lines, values)) from error


def _preset_folder() -> Traversable:
    try:
        return resources.files("segplan.presets")
    except ModuleNotFoundError:  # a checkout that was never installed
        return Path(__file__).parents[2] / "configs"


def read_text(path: Path) -> str:
    """The text of a configuration file.

    Raises:
        ConfigError: it cannot be read, is too large, or is no UTF-8 text.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB: that is no configuration file.")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: give a YAML file.") from error


def refuse_bombs(text: str, where: str) -> None:
    """Refuse aliases (a few bytes can unfold to gigabytes) and absurd nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            line = _line_of(event)
            raise ConfigError(f"{where} line {line}: YAML aliases are not taken; write it out.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = _line_of(event)
            raise ConfigError(f"{where} line {line}: nested more than {MAX_DEPTH} deep.")


def _line_of(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


_Keys = tuple[str, ...]
"""Keys from the top of the document down to one of its values."""


def _lines_of(tree: yaml.MappingNode, where: str, above: _Keys = ()) -> dict[_Keys, int]:
    """The line of each key; a key that is no text or was given twice is an error."""
    lines: dict[_Keys, int] = {}
    for key, value in tree.value:
        line = key.start_mark.line + 1
        if key.tag != _TAG + "str":
            raise ConfigError(f"{where} line {line}: a key must be text, like model or batch.")
        path = (*above, key.value)
        if path in lines:
            raise ConfigError(
                f"{where} line {line}: '{'.'.join(path)}' was given in line {lines[path]} already."
            )
        lines[path] = line
        if isinstance(value, yaml.MappingNode):
            lines.update(_lines_of(value, where, path))
    return lines


def _sentence(
    error: ValidationError, where: str, lines: dict[_Keys, int], values: dict[str, Any]
) -> str:
    """The first problem pydantic found, as one sentence with file, line and fix."""
    problem = error.errors()[0]
    path = _known_part(problem["loc"], lines)
    key = ".".join(path)
    start = f"{where} line {lines.get(path, '?')}: "
    if problem["type"] == "extra_forbidden":
        return start + _unknown_key(path)
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        return f"{start}{key}: {cause}"
    message = problem["msg"].removeprefix("Input should be ")
    if problem["type"] == "model_type":
        message = "keys below it, one 'key: value' a line"
    got = _value_at(values, path)
    hint = ""
    if problem["type"] == "literal_error":
        choices = [c.strip(" '") for c in message.replace(" or ", ",").split(",")]
        message, hint = f"one of {', '.join(choices)}", _did_you_mean(str(got), choices)
    return f"{start}{key} must be {message}, not {got!r}" + (hint or ".")


def _known_part(location: Sequence[int | str], lines: Mapping[_Keys, int]) -> _Keys:
    """As much of pydantic's location as are keys of the document."""
    path: _Keys = ()
    for part in location:
        if (*path, str(part)) not in lines:
            break
        path = (*path, str(part))
    return path


def _value_at(values: Any, path: _Keys) -> Any:
    for part in path:
        values = values.get(part) if isinstance(values, dict) else None
    return values


_SECTION_OF: dict[_Keys, type[BaseModel]] = {
    (): Config,
    ("schedule",): ScheduleSection,
    ("schedule", "validation"): ValidationSection,
    ("dataset",): DatasetSection,
}


def _unknown_key(path: _Keys) -> str:
    """What is wrong with a key nobody knows, and which was probably meant."""
    *above, word = path
    section = tuple(above)
    known = _keys(_SECTION_OF[section])
    elsewhere = [other for other, model in _SECTION_OF.items() if word in _keys(model)]
    if elsewhere:  # the right word in the wrong place
        hint = f": did you mean {'.'.join((*elsewhere[0], word))}?"
    else:
        hint = _did_you_mean(word, known) or f"; keys are {', '.join(known)}"
    return f"unknown key '{'.'.join(path)}'{hint}" + ("." if not hint.endswith("?") else "")


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, 1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else ""
