"""Convert models to onnxruntime's own format by its own converter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.bundle.source import Source
from ortune.core.errors import BadModel, gist
from ortune.deployment import model_files

CONFIG = "required_operators_and_types.config"
_LEVEL = "ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL"
_LIMIT_S = 900
_TOOL = "onnxruntime.tools.convert_onnx_models_to_ort"
_SAME_ADDRESSES = f"""
import ctypes, os, sys
ctypes.CDLL(None).personality(0x0040000)
os.execv(sys.executable, [sys.executable, "-m", "{_TOOL}", *sys.argv[1:]])
"""
"""The converter at addresses that Linux does not draw anew (ADDR_NO_RANDOMIZE): the order in which
it writes operators follows from them, and one model should be one file."""


def convert(
    source: Source, folder: Path, *, style: str, platform: str, types: bool, level: str
) -> None:
    """Write ``LABEL.ort`` of every model, and one list of the operators of all.

    The converter opens sessions, so it runs in a process of its own.

    Args:
        source: What is packed.
        folder: Receives the files.
        style: ``fixed`` or ``runtime``.
        platform: ``any``, ``arm`` or ``amd64``.
        types: List the types of every operator.
        level: How far the graph is rewritten.

    Raises:
        BadModel: The converter fails.
    """
    with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as temporary:
        models, out = Path(temporary, "models"), Path(temporary, "out")
        for name, label in source.labels.items():
            model_files.copy(source, name, models / label, f"{label}.onnx")
        linux = sys.platform == "linux"
        command = [sys.executable, *(("-c", _SAME_ADDRESSES) if linux else ("-m", _TOOL))]
        command += [str(models), "--output_dir", str(out)]
        command += ["--optimization_style", style.capitalize()]
        command += ["--enable_type_reduction"] * types
        command += [] if platform == "any" else ["--target_platform", platform]
        _run(command, level)
        for label in source.labels.values():
            (made,) = (out / label).glob("*.ort")
            shutil.move(made, folder / f"{label}.ort")
        (listed,) = out.glob("*.config")
        (folder / CONFIG).write_text(_without_places(listed), encoding="utf-8")


def _run(command: list[str], level: str) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, _LEVEL: level},
        )
    except subprocess.TimeoutExpired:
        raise BadModel(
            f"onnxruntime's converter did not end within {_LIMIT_S} s",
            fix="pack another trial (--trial KEY)",
        ) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [""]
        raise BadModel(
            f"onnxruntime does not convert the model: {gist(said[-1])}",
            fix="pack another trial (--trial KEY)",
        )


def _without_places(path: Path) -> str:
    """Return the list without the converter's comments, which name folders of this machine."""
    text = path.read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join(["# operators, and the types that they are used with", *kept, ""])
