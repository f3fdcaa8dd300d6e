"""The order in which shapes are listed."""

from __future__ import annotations


def size(shape: str) -> tuple[list[int], str]:
    """Return what sorts a written shape by its numbers: ``1x8`` before ``1x16``."""
    digits = "".join(c if c.isdigit() else " " for c in shape)
    return [int(number) for number in digits.split()], shape
