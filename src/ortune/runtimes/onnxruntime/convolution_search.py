"""How cuDNN's algorithm of a convolution is chosen, by how many shapes a session will see.

onnxruntime asks anew for every input shape of every convolution. Until 1.19 `exhaustive` ran each
algorithm of cuDNN and kept the fastest, `heuristic` asked cuDNN for a guess, and `default` took
one that works for all; from 1.20 on they are modes B, A and FALLBACK of cuDNN's frontend
(microsoft/onnxruntime#22705). Measured by others, on GPUs: 16 new shapes took 10.1 s by
`exhaustive` and 31 ms by `heuristic`, and runs of a shape that had been seen were no slower
(PaddlePaddle/PaddleX#5057). `default` was 48 times slower in steady runs where its algorithm does
not fit (PaddlePaddle/PaddleOCR#17970), 3.3 times slower on conformers, and up to 3 times faster
where shapes change (christopherthompson81/vernacula#192). Nothing of it was run here.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Search: TypeAlias = Literal["exhaustive", "heuristic", "default"]

FEW = 4
"""Shapes up to which each is worth a search: they are all seen while the session warms up."""


def searches(shapes: int | None) -> tuple[Search, ...]:
    """Return the modes worth a try, the best bet first.

    Args:
        shapes: Different input shapes that a session will see; None where that is not known, as
            with dynamic dimensions and no data.
    """
    if shapes == 1:
        return ("exhaustive",)
    if shapes is not None and shapes <= FEW:
        return ("exhaustive", "heuristic")
    return ("heuristic", "default")
