"""The staging buffer of CUDA's reductions over many elements.

Follows `setReduceConfig` and `ReduceConfig::global_memory_size` of
aten/src/ATen/native/cuda/Reduce.cuh (release 2.11) for sums that accumulate in float32: a
reduction whose outputs do not fill the card is spread over several blocks an output, which meet
in global memory.
"""

from __future__ import annotations

from math import prod

from segplan.trace.tape import TensorMeta

_WARP = 32
_MAX_THREADS = 512 // 4 * 4  # MAX_NUM_THREADS / output_vec_size of 4-byte sums
_INPUT_VEC = 4
_ACCUMULATOR_BYTES = 4
_BLOCKS_PER_SM = 2048 // 128


def staging_bytes(tensor: TensorMeta, dims: tuple[int, ...], sm_count: int) -> int:
    """Bytes of the buffer for a sum of `tensor` over `dims`; 0 where one block an output does."""
    rank = len(tensor.shape)
    over = {d % rank for d in dims if -rank <= d < rank}
    reduced = prod(tensor.shape[d] for d in over)
    outputs = tensor.numel // max(reduced, 1)
    if reduced <= 1 or outputs == 0:
        return 0
    fastest = min(
        (d for d in range(rank) if tensor.shape[d] > 1),
        key=lambda d: tensor.strides[d],
        default=rank - 1,
    )
    on_fastest = fastest in over
    # dim0 is the fastest dimension of the tensor: reduced or kept
    vec = 1
    if on_fastest:
        dim0, dim1 = reduced, outputs
    else:
        dim0, dim1 = outputs, reduced
        while vec < 4 and dim0 % (vec * 2) == 0:
            vec *= 2
        dim0 //= vec
    width, height = _block(dim0, dim1, 512 // vec)
    split, per_output, per_block = 1, 1, 1
    if on_fastest:
        split *= width
    elif dim0 >= width:
        per_block *= width
    reduce_y = False
    if reduced // split >= height * 16 or reduced // split >= 256:
        split *= height
        reduce_y = True
    else:
        per_block *= height
    values = -(-reduced // split)
    grid = -(-(outputs // vec) // per_block)
    target = sm_count * (2048 // (width * height))
    if not (reduce_y and values >= 256 and grid <= target):
        return 0
    ctas = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    per_output = ctas
    if per_output <= 1:
        return 0
    size = _ACCUMULATOR_BYTES * outputs * per_output
    if not on_fastest:
        size *= width * vec
    return size


def _block(dim0: int, dim1: int, threads: int) -> tuple[int, int]:
    def last_pow2(n: int) -> int:
        return 1 << (max(n, 1).bit_length() - 1)

    dim0_pow2 = last_pow2(dim0) if dim0 < threads else threads
    dim1_pow2 = last_pow2(dim1) if dim1 < threads else threads
    width = min(dim0_pow2, _WARP)
    height = min(dim1_pow2, threads // width)
    width = min(dim0_pow2, threads // height)
    return width, height
