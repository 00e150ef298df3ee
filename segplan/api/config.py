"""Configuration files: YAML with the keys of the command line, or a preset by its name."""

from __future__ import annotations

import difflib
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


def _to_patch(value: Any) -> Any:
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


_Patch = Annotated[Patch, BeforeValidator(_to_patch)]
_Bytes = Annotated[int, BeforeValidator(_to_bytes)]
_Names = Annotated[list[Annotated[str, BeforeValidator(_to_text)]], BeforeValidator(_to_names)]
_Name = Annotated[str, BeforeValidator(_to_text)]
_Count = Annotated[int, Field(ge=1)]


class Config(BaseModel):
    """What a configuration file may hold; a key that is absent is None and keeps its default.

    `patch` and `batch` are those of the training step. `segplan fit` looks at `patches`, or at
    `patch` where there is only that, and finds the largest batch whatever `batch` says.
    """

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

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

    def values(self) -> dict[str, Any]:
        """The keys that were given, under the names of the Python parameters."""
        return {name: getattr(self, name) for name in type(self).model_fields if
                getattr(self, name) is not None}  # fmt: skip


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
        return parse_config(_read(path), text_name)
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
        _refuse_bombs(text, where)
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


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB: that is no configuration file.")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: --config takes a YAML file.") from error


def _refuse_bombs(text: str, where: str) -> None:
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


def _lines_of(tree: yaml.MappingNode, where: str) -> dict[str, int]:
    """The line of each top-level key; a key that is no text or was given twice is an error."""
    lines: dict[str, int] = {}
    for key, _ in tree.value:
        line = key.start_mark.line + 1
        if key.tag != _TAG + "str":
            raise ConfigError(f"{where} line {line}: a key must be text, like model or batch.")
        if key.value in lines:
            raise ConfigError(
                f"{where} line {line}: '{key.value}' was given in line {lines[key.value]} already."
            )
        lines[key.value] = line
    return lines


def _sentence(
    error: ValidationError, where: str, lines: dict[str, int], values: dict[str, Any]
) -> str:
    """The first problem pydantic found, as one sentence with file, line and fix."""
    problem = error.errors()[0]
    key = str(problem["loc"][0])
    start = f"{where} line {lines.get(key, '?')}: "
    if problem["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in Config.model_fields.items()]
        hint = _did_you_mean(key, known) or f"; keys are {', '.join(known)}"
        return f"{start}unknown key '{key}'{hint}" + ("." if not hint.endswith("?") else "")
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        return f"{start}{key}: {cause}"
    message = problem["msg"].removeprefix("Input should be ")
    got = values.get(key)
    hint = ""
    if problem["type"] == "literal_error":
        choices = [c.strip(" '") for c in message.replace(" or ", ",").split(",")]
        message, hint = f"one of {', '.join(choices)}", _did_you_mean(str(got), choices)
    return f"{start}{key} must be {message}, not {got!r}" + (hint or ".")


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, 1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else ""
