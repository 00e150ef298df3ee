"""Operators with made-up times, for tests."""

from __future__ import annotations

from segplan.timing.operators import Operator, OperatorTime, OperatorTimes
from segplan.trace.tape import Op, TensorMeta

UUID = "GPU-11111111-aaaa-bbbb-cccc-000000000000"


def meta(*shape: int, dtype: str = "float16") -> TensorMeta:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorMeta(shape, dtype, tuple(reversed(strides)))


def convolution(
    c_in: int, c_out: int, side: int, batch: int = 1, dtype: str = "float16", kernel: int = 3
) -> Op:
    return Op(
        "convolution.default", "forward", 0, 0, 0,
        (meta(batch, c_in, side, side, side, dtype=dtype),
         meta(c_out, c_in, kernel, kernel, kernel, dtype=dtype)),
        (meta(batch, c_out, side, side, side, dtype=dtype),),
        (None, None, None, (1,) * 3, (kernel // 2,) * 3, (1,) * 3, False, (0,) * 3, 1),
    )  # fmt: skip


def stream(*shape: int, dtype: str = "float16") -> Op:
    one = meta(*shape, dtype=dtype)
    return Op("relu.default", "forward", 0, 0, 0, (one,), (one,), (None,))


def timed(op: Op, *seconds: float, precision: str = "fp16") -> OperatorTime:
    return OperatorTime(Operator(op, precision), seconds)


def times(*found: OperatorTime, card: str = "h200-sxm-141gb", uuid: str | None = UUID, **other):
    return OperatorTimes(
        **{
            "card": card, "card_name": "NVIDIA H200", "card_uuid": uuid, "times": found,
            "wanted": len(found), "software": {"torch": "2.11.0"}, "throttled": (),
            "made_at": "2026-01-01T00:00:00+00:00", **other,
        }
    )  # fmt: skip
