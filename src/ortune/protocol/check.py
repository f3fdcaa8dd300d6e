"""The check of a request against a model, before it is queued."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.core.facts import TensorSpec
from ortune.protocol.inference import InferRequest


def check(
    request: InferRequest,
    inputs: Sequence[TensorSpec],
    *,
    max_batch: int,
    model: str = "",
    outputs: Sequence[TensorSpec] | None = None,
) -> None:
    """Refuse what the model cannot take.

    Args:
        inputs: The model's.
        max_batch: Rows of the first dimension at most; 0 where it is no batch.
        model: Name, for messages.
        outputs: The model's; names that are asked for are looked up there.

    Raises:
        Refused: A name, datatype, rank, dimension or number of rows is wrong.
    """
    raise NotImplementedError
