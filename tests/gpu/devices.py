"""What the tests of a GPU share: which backend starts here, and how alike answers are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.session import Tensors
from ortune.data.zoo import digit_cnn

MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")


def skip_without(backend: Backend) -> pytest.MarkDecorator:
    """Skip where a backend does not start, with the reason."""
    reason = backend.missing()
    return pytest.mark.skipif(reason is not None, reason=f"{backend.name()}: {reason}")


def digits(count: int) -> dict[str, Any]:
    """Return made-up inputs of the digit classifier."""
    drawn = np.random.default_rng(count).standard_normal((count, 1, 28, 28))
    return {"image": drawn.astype(np.float32)}


def on_cpu(path: Path, feeds: Tensors) -> dict[str, Any]:
    """Run a model as it is on the CPU."""
    with Cpu(level="disabled").open(path) as session:
        return session.run(feeds)


def decibel(wanted: Tensors, found: Tensors) -> float:
    """Return the smallest signal-to-noise ratio among outputs, in dB."""
    assert wanted.keys() == found.keys()
    return min(_decibel(wanted[name], found[name]) for name in wanted)


def _decibel(wanted: Any, found: Any) -> float:
    exact, other = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
    assert exact.shape == other.shape
    return float(10 * np.log10((exact**2).sum() / max(((exact - other) ** 2).sum(), 1e-30)))


def share(placement: Mapping[str, int], provider: str) -> float:
    """Return which share of the nodes a provider took."""
    return placement.get(provider, 0) / max(1, sum(placement.values()))
