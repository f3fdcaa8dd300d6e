"""What the metrics share: which outputs are compared, and vectors of sentences made of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, suggest_names
from ortune.core.hub import Pooling
from ortune.core.session import Tensors

Floats = NDArray[np.float64]


def select_outputs(tensors: Tensors, output: str) -> list[str]:
    """Return the output of that name, or all for an empty name.

    Raises:
        BadData: There is no such output.
    """
    if output and output not in tensors:
        raise BadData(f"the model has no output '{output}'", fix=suggest_names(output, tensors))
    return [output] if output else list(tensors)


def is_exact(array: NDArray[Any]) -> bool:
    """Say whether values are integers, booleans or text: things that are equal or not."""
    return array.dtype.kind in "iubUSOTM"


def to_floats(array: NDArray[Any]) -> Floats:
    """Return the values as float64 [elements]; complex ones as real and imaginary parts."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128).reshape(-1).view(np.float64)
    return array.astype(np.float64).reshape(-1)


def compute_softmax(logits: NDArray[Any]) -> Floats:
    """Return shares along the last axis that add up to 1, float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float64)


def has_same_shape(expected: Tensors, actual: Tensors, name: str) -> bool:
    """Say whether the candidate has an output in the shape that it should have."""
    return name in actual and actual[name].shape == expected[name].shape


def has_broken_values(expected: Tensors, actual: Tensors, names: list[str]) -> bool:
    """Say whether the candidate has NaN or infinity where the baseline does not have the same."""
    for name in names:
        if name not in actual or is_exact(actual[name]):
            continue
        values = to_floats(actual[name])
        bad = ~np.isfinite(values)
        if not has_same_shape(expected, actual, name) or is_exact(expected[name]):
            if bad.any():
                return True
            continue
        reference = to_floats(expected[name])
        bad |= ~np.isfinite(reference)
        if bad.any() and not np.array_equal(values[bad], reference[bad], equal_nan=True):
            return True
    return False


def pair_finite(expected: NDArray[Any], actual: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return both as float64 [elements], without positions at which both are not finite."""
    first, second = to_floats(expected), to_floats(actual)
    fine = np.isfinite(first) & np.isfinite(second)
    return (first, second) if fine.all() else (first[fine], second[fine])


def count_mismatches(expected: NDArray[Any], actual: NDArray[Any]) -> int:
    """Count the positions at which two arrays of one shape are not equal."""
    return int(np.count_nonzero(np.asarray(expected != actual)))


_MASK = "attention_mask"
_TOKENS = 3


def find_vectors(outputs: Tensors, output: str) -> str:
    """Return the output that holds vectors: of sentences where there is one, else of tokens.

    Args:
        outputs: The baseline's.
        output: Its name; empty takes the first of rank 2 whose name speaks of sentences, else the
            first of rank 3, else the first of rank 2.

    Raises:
        BadData: There is none.
    """
    if output:
        return select_outputs(outputs, output)[0]
    ranks = {name: array.ndim for name, array in outputs.items() if not is_exact(array)}
    sentences = [name for name, rank in ranks.items() if rank == 2 and "sentence" in name.lower()]
    by_rank = [name for want in (_TOKENS, 2) for name, rank in ranks.items() if rank == want]
    if not (names := [*sentences, *by_rank]):
        raise BadData(
            f"no output of {', '.join(outputs)} holds vectors of sentences or tokens",
            fix="use cosine or agreement",
        )
    return names[0]


def pool_sentences(outputs: Tensors, name: str, pooling: Pooling, inputs: Tensors) -> Floats:
    """Return one vector a sentence, float64 [sentences, width], of [sentences, tokens, width].

    The inputs' ``attention_mask`` says which tokens count; without one all do.
    """
    values = outputs[name].astype(np.float64)
    if values.ndim != _TOKENS:
        return values.reshape(len(values), -1)
    mask = np.asarray(inputs.get(_MASK, np.ones(values.shape[:2])), np.float64)
    weights = mask.reshape(values.shape[:2])[..., None]
    if pooling == "cls":
        return np.asarray(values[:, 0])
    if pooling == "max":
        return np.asarray(np.where(weights > 0, values, -np.inf).max(1))
    if pooling == "last":
        last = values.shape[1] - 1 - np.argmax(weights[:, ::-1, 0] > 0, axis=1)
        return np.asarray(values[np.arange(len(values)), last])
    return np.asarray((values * weights).sum(1) / np.maximum(weights.sum(1), 1e-9))


def compute_cosines(first: Floats, second: Floats) -> Floats:
    """Return the cosine of each two rows; 0 where one of them is zero."""
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products = (first * second).sum(-1)
    cosines = np.divide(products, lengths, np.zeros_like(products), where=lengths > 0)
    return np.asarray(np.clip(cosines, -1, 1))
