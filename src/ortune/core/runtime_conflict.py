"""Which distributions of onnxruntime are installed, and what is wrong with several."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions

from ortune.core.event import Note, Sink, ignore_event

RUNTIMES = (
    *("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino"),
    *("onnxruntime-training", "onnxruntime-qnn", "onnxruntime-rocm", "onnxruntime-migraphx"),
    *("onnxruntime-cann", "onnxruntime-silicon", "onnxruntime-webgpu"),
)
"""Distributions that install the same module; two of them overwrite each other's files."""


def list_runtimes(places: Sequence[str] | None = None) -> dict[str, str]:
    """Return the distributions of onnxruntime that are installed, each to its version.

    Args:
        places: Folders of packages; this process's own without.
    """
    where = sys.path if places is None else places
    versions: dict[str, str] = {}
    for name in RUNTIMES:
        for package in distributions(name=name, path=list(where)):
            versions.setdefault(name, package.version)
    return versions


def find_runtime_conflict(versions: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what is wrong with several distributions of onnxruntime, and the fix; None of one.

    Which of them answers is the chance of who was installed last (onnxruntime issue 9966).
    """
    if len(versions) < 2:
        return None
    fix = f"pip uninstall -y {' '.join(versions)} && pip install onnxruntime"
    return (
        f"{', '.join(versions)} are installed together: each overwrites the other",
        f"{fix}; `ortune doctor env add cuda` and the like keep others apart",
    )


def warn_of_runtime_conflict(sink: Sink = ignore_event) -> None:
    """Say that this process's environment holds several distributions of onnxruntime, if it does.

    A note, or a warning of Python's where nobody listens for notes.
    """
    problem = find_runtime_conflict(list_runtimes())
    if problem is None:
        return
    text = "; fix: ".join(problem)
    if sink is ignore_event:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    else:
        sink(Note(text, warning=True))
