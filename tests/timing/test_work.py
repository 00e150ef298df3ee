"""What operators have to do, by hand."""

from __future__ import annotations

import pytest

from segplan.timing.work import TILE_COLUMNS, TILE_ROWS, work_of, work_table
from segplan.trace.tape import Op, TensorMeta


def dense(*shape: int, dtype: str = "float16") -> TensorMeta:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorMeta(shape, dtype, tuple(reversed(strides)))


def op(name: str, inputs, outputs, args=(), phase: str = "forward") -> Op:
    return Op(name, phase, 1, 0, 0, tuple(inputs), tuple(outputs), tuple(args))


def convolution(c_in: int, c_out: int, kernel: int, size: int, groups: int = 1) -> Op:
    image = dense(2, c_in, size, size, size)
    weight = dense(c_out, c_in // groups, kernel, kernel, kernel)
    result = dense(2, c_out, size, size, size)
    args = (None, None, None, (1, 1, 1), (1, 1, 1), (1, 1, 1), False, (0, 0, 0), groups)
    return op("convolution.default", (image, weight), (result,), args)


def test_a_convolution_is_a_matrix_product_of_whole_tiles():
    (work,) = work_of(convolution(32, 64, 3, 16), "forward")
    rows = 2 * 16**3  # voxels, a multiple of a tile's rows
    assert rows % TILE_ROWS == 0
    assert work.kind == "conv_forward"
    assert work.flops == 2 * rows * 64 * 32 * 27
    assert work.inner == 32 * 27
    assert work.tiles == rows / TILE_ROWS * 64 / TILE_COLUMNS


def test_few_channels_cost_as_much_as_a_tile():
    narrow, wide = (work_of(convolution(32, c, 3, 16), "forward")[0].flops for c in (16, 64))
    assert narrow == wide


def test_one_input_channel_is_padded_to_eight():
    (work,) = work_of(convolution(1, 64, 3, 16), "forward")
    assert work.inner == 8 * 27


def test_the_gradients_of_a_convolution_are_two_products_and_a_sum():
    forward = convolution(32, 64, 3, 16)
    image, weight = forward.inputs
    result = forward.outputs[0]
    mask = (True, True, True)
    args = (None, None, None, (64,), (1, 1, 1), (1, 1, 1), (1, 1, 1), False, (0, 0, 0), 1, mask)
    backward = op(
        "convolution_backward.default",
        (result, image, weight),
        (image, weight, dense(64)),
        args,
        "backward",
    )
    kinds = [w.kind for w in work_of(backward, "backward")]
    assert kinds == ["conv_input_gradient", "conv_weight_gradient", "reduction"]
    to_weight = work_of(backward, "backward")[1]
    assert to_weight.inner == 2 * 16**3


def test_channels_last_turns_nothing_around():
    plain = convolution(32, 64, 3, 16)

    def last(t: TensorMeta) -> TensorMeta:
        _, c, h, w, d = t.shape
        return TensorMeta(t.shape, t.dtype, (c * h * w * d, 1, c * w * d, c * d, c))

    turned = op(plain.name, map(last, plain.inputs), map(last, plain.outputs), plain.args)
    assert work_of(plain, "forward")[0].turned > 0
    assert work_of(turned, "forward")[0].turned == 0


def test_depthwise_convolutions_are_their_own_kind():
    (work,) = work_of(convolution(32, 32, 3, 16, groups=32), "forward")
    assert work.kind == "grouped_conv"
    assert work.flops == 2 * 2 * 16**3 * 1 * 27 * 32


def test_batch_norm_reduces_only_in_training():
    image = dense(2, 16, 8, 8, 8)
    out = (image, dense(16), dense(16))

    def works(training):
        args = (None, None, None, None, None, training, 0.1, 1e-5)
        return work_of(op("native_batch_norm.default", (image,), out, args), "forward")

    bytes_of_image = 2 * 16 * 8**3 * 2
    moments, applied = works(training=True)
    assert (moments.kind, moments.tiles, moments.moved) == ("moments", 16, bytes_of_image)
    assert applied.kind == "norm_apply"
    (evaluated,) = works(training=False)
    assert (evaluated.kind, evaluated.tiles) == ("elementwise", 0)
    assert evaluated.moved == applied.moved > 2 * bytes_of_image


def test_group_norm_reduces_a_group_and_its_gradient_a_channel_of_a_sample_at_a_time():
    image = dense(2, 16, 8, 8, 8)
    args = (None, None, None, 2, 16, 512, 8, 1e-5)
    moments, applied = work_of(op("native_group_norm.default", (image,), (image,), args), "forward")
    assert (moments.kind, moments.tiles) == ("moments", 2 * 8)
    args = (None, None, None, None, None, 2, 16, 512, 8, (True, True, True))
    summed, computed = work_of(
        op("native_group_norm_backward.default", (image, image), (image,), args), "backward"
    )
    assert (summed.kind, summed.tiles) == ("group_norm_backward", 2 * 16)
    assert (applied.kind, computed.kind) == ("norm_apply", "norm_apply")
    assert applied.moved == 2 * moments.moved
    assert computed.moved == 1.5 * summed.moved


def test_what_only_allocates_does_nothing_but_is_dispatched():
    table = work_table([op("empty.memory_format", (), (dense(8),))])
    assert len(table.kind) == 0
    assert table.launches == (1, 0, 0)


def test_expanded_axes_are_read_once():
    ones = TensorMeta((4, 1000), "float32", (0, 1))
    (work,) = work_of(op("mul.Tensor", (ones, ones), (dense(4, 1000, dtype="float32"),)), "forward")
    assert work.moved == 1000 * 4 * 2 + 4000 * 4


def test_a_permuted_copy_is_no_stream():
    image = dense(2, 16, 8, 8, 8)
    permuted = TensorMeta((2, 8, 8, 8, 16), "float16", (8192, 64, 8, 1, 512))
    (copy,) = work_of(op("clone.default", (permuted,), (dense(2, 8, 8, 8, 16),)), "forward")
    (plain,) = work_of(op("clone.default", (image,), (image,)), "forward")
    assert (copy.kind, plain.kind) == ("strided", "elementwise")


IMAGE = dense(2, 8, 4, 4)
SINGLE = dense(2, 8, 4, 4, dtype="float32")
CHANNELS = TensorMeta((1, 8, 1, 1), "float16", (8, 1, 1, 1))
EXPANDED = TensorMeta((2, 8, 4, 4), "float16", (0, 1, 0, 0))


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (IMAGE, "elementwise"),
        (CHANNELS, "broadcast"),
        (EXPANDED, "broadcast"),
        (dense(1, 1, 1, 1), "broadcast"),
        (TensorMeta((), "float16", ()), "broadcast"),
        (dense(0), "elementwise"),
        (SINGLE, "cast"),
        (dense(2, 8, 4, 4, dtype="bool"), "elementwise"),
        (dense(1, 8, 1, 1, dtype="float32"), "broadcast_cast"),
        (TensorMeta((), "float32", ()), "broadcast"),  # a number is converted once
    ],
)
def test_what_an_elementwise_operator_meets_decides_how_it_loads(other, kind):
    result = SINGLE if kind in ("cast", "broadcast_cast") else IMAGE
    (work,) = work_of(op("add.Tensor", (IMAGE, other), (result,)), "forward")
    assert work.kind == kind


def test_a_copy_to_16_bit_has_a_kernel_of_its_own_and_one_from_it_has_none():
    to, back = (
        work_of(op("_to_copy.default", (one,), (other,)), "forward")[0].kind
        for one, other in ((SINGLE, IMAGE), (IMAGE, SINGLE))
    )
    assert (to, back) == ("elementwise", "cast")


def test_pieces_put_together_are_copied_not_spread():
    both = dense(4, 8, 4, 4)
    for name, inputs, output in (
        ("cat.default", (IMAGE, IMAGE), both),
        ("constant_pad_nd.default", (IMAGE,), both),
        ("slice_backward.default", (IMAGE,), both),
    ):
        (work,) = work_of(op(name, inputs, (output,)), "forward")
        assert work.kind == "copy"


@pytest.mark.parametrize(
    ("inner", "unaligned"), [(64, 0.0), (60, 1.0)]
)  # 120 bytes are no multiple of 16
def test_rows_of_a_product_begin_on_16_bytes_or_not(inner, unaligned):
    a, b, result = dense(32, inner), dense(inner, 64), dense(32, 64)
    (work,) = work_of(op("mm.default", (a, b), (result,)), "forward")
    assert work.unaligned == unaligned


@pytest.mark.parametrize(
    ("dtype", "weights", "kinds"),
    [
        ("float32", 0, ("moments", "channel_norm_backward")),
        ("float32", 2, ("cudnn_norm", "cudnn_norm_backward")),
        ("bfloat16", 2, ("moments", "channel_norm_backward")),
    ],
)
def test_norms_with_a_weight_are_cudnns_but_in_bfloat16(dtype, weights, kinds):
    image, saved = dense(2, 8, 4, 4, 4, dtype=dtype), dense(8, dtype="float32")
    args = (None, None, None, None, None, True, 0.1, 1e-5)
    inputs = (image, *[saved] * weights)
    forward = op("native_batch_norm.default", inputs, (image, saved, saved), args)
    args = (None, None, None, None, None, None, None, True, 1e-5, (True, True, True))
    inputs = (image, image, *[saved] * (weights // 2), saved, saved)
    backward = op("native_batch_norm_backward.default", inputs, (image,), args)
    found = [work_of(one, one.phase)[0].kind for one in (forward, backward)]
    assert tuple(found) == kinds


def test_each_row_of_a_layer_norm_is_a_block():
    image, weight = dense(2, 1000, 48), dense(48)
    norm = op(
        "native_layer_norm.default", (image, weight, weight), (image,), (None, (48,), None, None)
    )
    (work,) = work_of(norm, "forward")
    assert (work.kind, work.tiles) == ("layer_norm", 2000.0)
