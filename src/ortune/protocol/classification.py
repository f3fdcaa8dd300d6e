"""Classes with the highest scores in the place of scores, as Triton writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray


def classify(
    array: NDArray[Any], classes: int, labels: Sequence[str] = (), *, batched: bool = True
) -> NDArray[Any]:
    """Return ``score:index`` or ``score:index:label`` of the highest scores of each row.

    Args:
        array: Scores, a row of the first dimension each; without `batched` all are one row.
        classes: How many of each row at most.
        labels: Names by index; none beyond the last.

    Returns:
        Object array of ``bytes``: [rows, classes], or [classes] without `batched`.

    Raises:
        Refused: The output is no numbers.
    """
    raise NotImplementedError
