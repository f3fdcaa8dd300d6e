"""Which plans run on a plain onnxruntime session, and their files in a package."""

from __future__ import annotations

import shutil
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.bundle.source import Source
from ortune.core.errors import BadModel

MODEL = "model.onnx"


def refusal(source: Source) -> str:
    """Say why a plan is more than a session on onnxruntime's own CPU kernels; empty if it is not.

    A provider that is a package of its own is set up in other ways in each language, and one
    that bundles several models into one is no session.
    """
    if not isinstance(source.backend, Cpu):
        return f"it runs on '{source.backend.name()}', not on onnxruntime's own CPU kernels"
    if source.plan.custom_ops:
        return "it needs libraries of custom operators"
    return ""


def cpu(source: Source) -> Cpu:
    """Return the settings of a plan that `refusal` lets through."""
    assert isinstance(source.backend, Cpu)
    return source.backend


def homes(source: Source, folder: Path) -> dict[str, Path]:
    """Return model name -> its folder: the given one for the only model."""
    if len(source.models) == 1:
        return dict.fromkeys(source.models, folder)
    return {name: folder / label for name, label in source.labels.items()}


def copy(source: Source, name: str, home: Path, file: str = MODEL) -> Path:
    """Copy a tuned model with its external data into a folder and return the model's path.

    Raises:
        BadModel: External data has the model's own name.
    """
    home.mkdir(parents=True, exist_ok=True)
    path = home / file
    shutil.copyfile(source.models[name], path)
    for place, data in source.external(name).items():
        if (home / place).exists():
            raise BadModel(
                f"two of the model's files would be '{place}'", fix="rename its external data"
            )
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data, home / place)
    return path


def size(source: Source, name: str) -> int:
    """Return the bytes of a tuned model with its external data."""
    files = [source.models[name], *source.external(name).values()]
    return sum(path.stat().st_size for path in files)


def first(source: Source, folder: str) -> str:
    """Return what follows a program: the first model, its first sample, a folder of answers."""
    home = next(iter(homes(source, Path(folder)).values()))
    check = next(iter(homes(source, Path("check")).values()))
    return f"{(home / MODEL).as_posix()} {(check / '0').as_posix()} answers"
