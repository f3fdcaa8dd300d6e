"""Sums of two 8-bit products in 16 bits: what x86 CPUs without VNNI compute.

``vpmaddubsw`` (AVX2, and AVX-512 before VNNI) multiplies unsigned by signed bytes and adds the
products of neighbours along the inner dimension K in a saturating int16; only then is the sum
widened. Neighbours are elements 2i and 2i + 1 of K. onnxruntime's kernels use it for U8
activations and S8 weights alone; U8U8, S8S8 and S8U8 are exact. Its convolutions put K in the
order kernel row, kernel column, input channel; depthwise ones without a channel multiplier are
exact. Verified bit by bit on an emulated Haswell, onnxruntime 1.31 (docs/quantizing.md).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LOW, HIGH = -32768, 32767
_TOP = 255


def kernel_matrix(weight: NDArray[Any]) -> NDArray[Any]:
    """Return the weight of one group, [out, in, *kernel], as the kernel's [K, out]."""
    order = (*range(2, weight.ndim), 1, 0)
    return np.ascontiguousarray(weight.transpose(order).reshape(-1, weight.shape[0]))


def pad_to_even(matrix: NDArray[Any], axis: int) -> NDArray[Any]:
    """Fill K up to an even number with zeros."""
    if matrix.shape[axis] % 2 == 0:
        return matrix
    width = [(0, 1) if i == axis % matrix.ndim else (0, 0) for i in range(matrix.ndim)]
    return np.pad(matrix, width)


def at_risk(matrix: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return which pairs of a weight [K, N] can leave 16 bits for some activation, [K/2, N]."""
    return compute_worst_excess(matrix) > 0


def compute_worst_excess(matrix: NDArray[np.int8]) -> NDArray[np.int32]:
    """Return by how much each pair can leave 16 bits at most, [K/2, N]; 0 where it cannot."""
    wide = pad_to_even(matrix, 0).astype(np.int32)
    first, second = wide[0::2], wide[1::2]
    high = _TOP * (np.maximum(first, 0) + np.maximum(second, 0)) - HIGH
    low = LOW - _TOP * (np.minimum(first, 0) + np.minimum(second, 0))
    return np.asarray(np.maximum(np.maximum(high, low), 0), np.int32)


def compute_saturation_loss(
    x: NDArray[np.uint8], matrix: NDArray[np.int8], risk: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Return what saturation adds to the exact product: [M, N], 0 where nothing saturates.

    Args:
        x: Activations [M, K].
        matrix: Weights [K, N].
        risk: Of `at_risk(matrix)`; only these pairs are looked at.
    """
    total = np.zeros((len(x), matrix.shape[1]), np.int32)
    activations, weights = pad_to_even(x, 1), pad_to_even(matrix, 0)
    for pair in np.flatnonzero(risk.any(axis=1)):
        columns = np.flatnonzero(risk[pair])
        first, second = weights[2 * pair, columns], weights[2 * pair + 1, columns]
        rows = activations[:, 2 * pair : 2 * pair + 2].astype(np.int32)
        sums = rows[:, :1] * first.astype(np.int32) + rows[:, 1:] * second.astype(np.int32)
        over = np.clip(sums, LOW, HIGH) - sums
        total[:, columns] += over
    return total
