"""What onnxruntime logs while it opens a session: harmless lines explained, real ones kept."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock

HARMLESS: tuple[tuple[str, str], ...] = (
    (
        r"Some nodes were not assigned to the preferred execution providers",
        "sizes and shapes are computed on the CPU on purpose; the placement says how many nodes",
    ),
    (r"Rerunning with verbose output on a non-minimal build", "goes with the line before"),
    (
        r"Memcpy nodes? (is|are) added to the graph",
        "the graph is divided among devices; it matters for cuda_graph, which then says so",
    ),
    (
        r"No importer registered for op|FusedMatMul",
        "TensorRT has no such operator: the CUDA provider runs that node",
    ),
    (
        r"Default plugin library is not on the path",
        "TensorRT's own plug-ins are not there; a model that needs one does not load",
    ),
    (
        r"generated with INT64 weights",
        "indices are narrowed to 32 bits for TensorRT; no tensor has as many elements",
    ),
    (
        r"weights outside the range of INT32 was clamped",
        "ends of slices that mean 'to the end' are cut to the largest number of 32 bits",
    ),
    (
        r"CUDA lazy loading is not enabled",
        "the driver loads all kernels at once: memory, not time",
    ),
    (
        r"TRT EP will implicitly create optimization profiles",
        "no profiles are given: the engine is built again for shapes beyond those seen",
    ),
    (
        r"GPU device discovery failed|device_discovery\.cc",
        "onnxruntime looks for GPUs of plug-in providers in /sys; others are not found that way",
    ),
    (
        r"Config with key \[.*\] already exists",
        "an option is set twice, and the later value holds",
    ),
    (
        r"No registered plugin EP device found",
        "the provider is part of the package and no plug-in: it is taken from there",
    ),
)
"""Pattern of a line -> why it says nothing of the model, by the texts of onnxruntime's and
onnx-tensorrt's sources."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(
    r"^\d{4}-\d\d-\d\d [\d:.]+ \[(?P<level>[VIWEF]):[^\]]*\]\s*|^EP Error\s*", re.MULTILINE
)
_PLACE = re.compile(r"/\S+\.(?:cc|cpp|h):\d+ (?:.*?\[ONNXRuntimeError\] : \d+ : \w+ : |\S+ )?")
_TURN = RLock()
"""Descriptor 2 is the whole process's."""


@dataclass
class RuntimeLog:
    """What the runtime wrote; filled when the block that it is of has ended."""

    text: str = ""

    @property
    def lines(self) -> list[str]:
        """What was logged, without colours, times and places in the sources."""
        lines = _COLOURS.sub("", self.text).splitlines()
        return [strip_log_head(line) for line in lines if line.strip()]

    @property
    def real(self) -> list[str]:
        """The lines that no harmless one explains."""
        return [line for line in self.lines if not explain_line(line)]

    @property
    def reason(self) -> str:
        """The first real line, which names the cause; empty where there is none."""
        return next(iter(self.real), "")


def explain_line(line: str) -> str:
    """Say why a logged line is harmless; empty for one that is not known to be."""
    return next((why for pattern, why in HARMLESS if re.search(pattern, line)), "")


def strip_log_head(line: str) -> str:
    """Cut the time, the level and the place in the runtime's sources off a logged line."""
    return _PLACE.sub("", _HEAD.sub("", line)).strip()


@contextmanager
def capture_log(*, verbose: bool = False, repeat: bool = True) -> Iterator[RuntimeLog]:
    """Collect what native code writes to stderr; real lines are written there afterwards.

    onnxruntime tells why a provider does not start in its log alone, and goes on without it.

    Args:
        verbose: Let everything through, and collect nothing.
        repeat: Write the real lines to stderr; False of a log that is only read.
    """
    log = RuntimeLog()
    if verbose:
        yield log
        return
    with _TURN, tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            log.text = file.read().decode("utf-8", "backslashreplace")
        for line in log.real if repeat else ():  # where it has failed, the error says why
            sys.stderr.write(f"{line}\n")
