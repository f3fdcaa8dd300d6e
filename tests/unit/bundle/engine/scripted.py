"""Sessions that do as they are told, for what is about threads and turns."""

import threading
from collections.abc import Callable, Mapping

import numpy as np

from ortune.bundle.engine.manifest import Signature
from ortune.core.facts import TensorSpec
from ortune.core.session import InProcess, Tensors

DOUBLING = Signature(
    (TensorSpec("x", "float32", ("N", "T")),), (TensorSpec("y", "float32", ("N", "T")),)
)


class Doubling(InProcess):
    """Gives twice its input, refuses negative ones, and can be held.

    Attributes:
        seen: What it was given, in order.
        go: While it is not set, runs wait.
        entered: Set by a run that began.
    """

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []
        self.go, self.entered = threading.Event(), threading.Event()
        self.go.set()

    def run(self, feeds: Tensors) -> dict[str, np.ndarray]:
        self.seen.append(feeds["x"])
        self.entered.set()
        assert self.go.wait(30)
        if (feeds["x"] < 0).any():
            raise ValueError("a negative number")
        return {"y": feeds["x"] * 2}

    def placement(self) -> Mapping[str, int]:
        return {"script": 1}


def row(value: float, width: int = 4, rows: int = 1) -> dict[str, np.ndarray]:
    """Return a sample whose values tell it from others."""
    return {"x": np.full((rows, width), value, np.float32) + np.arange(width, dtype=np.float32)}


def in_threads(calls: list[Callable[[], object]]) -> list[BaseException]:
    """Call all at once, each in a thread of its own; return what they raised."""
    failed: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return failed
