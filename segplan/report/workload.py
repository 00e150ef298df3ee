"""One line that says what is trained."""

from __future__ import annotations

import dataclasses

from segplan.workload import Workload

_TITLE = ("model", "in_channels", "out_channels", "precision", "optimizer", "loss")
_ELSEWHERE = ("patch", "batch", "model_args")


def title(w: Workload) -> str:
    """Model, channels, precision, optimizer and loss, then every option that is not the default.

    Patch and batch are left out: a report shows them where they belong.
    """
    parts = [w.model]
    if w.model_args:
        parts[0] += f" ({', '.join(f'{k}={_value(v)}' for k, v in w.model_args.items())})"
    parts += [f"{w.in_channels}→{w.out_channels} channels", w.precision, w.optimizer, w.loss]
    default = Workload()
    for field in dataclasses.fields(w):
        if field.name in (*_TITLE, *_ELSEWHERE):
            continue
        value = getattr(w, field.name)
        if value != getattr(default, field.name):
            parts.append(field.name if value is True else f"{field.name} {value}")
    return " · ".join(parts)


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(_value(v) for v in value)}]"
    return str(value)
