"""Golden samples as plain files that a program in any language reads and answers.

A sample is a folder: ``inputs.txt`` and ``outputs.txt`` with a line an array, of its file, type,
shape (``1x3x224``, or ``-`` for a single value) and name, and the files of raw little-endian
values.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ortune.bundle.source import Source
from ortune.bundle.target import Replay
from ortune.core.errors import BadModel, gist
from ortune.core.session import Tensors
from ortune.engine.golden import snr_db

_KINDS = {
    *("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("int64", "uint64", "bool"),
}
_LIMIT_S = 300


def refusal(source: Source) -> str:
    """Say which input or output is of a type that not every language has; empty if none is."""
    for signature in source.manifest.signatures.values():
        for spec in (*signature.inputs, *signature.outputs):
            if spec.dtype not in _KINDS:
                return f"'{spec.name}' is {spec.dtype}, which not every language's API takes"
            if "\n" in spec.name or "\r" in spec.name:
                return f"{spec.name!r} has a line break in its name"
    return ""


def write(folder: Path, inputs: Tensors, outputs: Tensors) -> None:
    """Write one sample."""
    folder.mkdir(parents=True, exist_ok=True)
    for label, arrays in (("input", inputs), ("output", outputs)):
        listed = []
        for at, (name, array) in enumerate(arrays.items()):
            values = np.ascontiguousarray(array)
            file = f"{label}_{at}.bin"
            dims = "x".join(map(str, np.shape(array))) or "-"
            listed.append(f"{file} {values.dtype.name} {dims} {name}\n")
            little = values.astype(values.dtype.newbyteorder("<"))
            (folder / file).write_bytes(little.tobytes())
        (folder / f"{label}s.txt").write_text("".join(listed), encoding="utf-8", newline="\n")


def write_all(source: Source, name: str, folder: Path) -> None:
    """Write every golden sample of a model into folders that are numbered from 0."""
    for at, (inputs, outputs) in enumerate(source.feeds(name)):
        write(folder / str(at), inputs, outputs)


def read_answers(folder: Path, expected: Tensors) -> Tensors:
    """Return the outputs that a program wrote for a sample, in the types and shapes expected.

    Raises:
        BadModel: One is missing or has another size.
    """
    found = {}
    for at, (name, array) in enumerate(expected.items()):
        path = folder / f"output_{at}.bin"
        wanted = np.asarray(array)
        raw = path.read_bytes() if path.is_file() else b""
        if len(raw) != wanted.nbytes:
            raise BadModel(
                f"output '{name}' has {len(raw)} bytes where {wanted.nbytes} are expected",
                fix="pack another trial (--trial KEY)",
            )
        values = np.frombuffer(raw, wanted.dtype.newbyteorder("<"))
        found[name] = values.astype(wanted.dtype).reshape(wanted.shape)
    return found


def replay(
    source: Source, by: str, command: Callable[[str], Sequence[str | Path]], *, where: Path
) -> Replay:
    """Let a program answer all golden samples.

    Args:
        source: What the package was made of.
        by: What runs it, for the report.
        command: Of a model's name: the program and the model's file; the folders of the sample
            and of the answers are added.
        where: The folder that it runs in.

    Raises:
        BadModel: The program fails, hangs, or leaves an answer out.
    """
    worst = float("inf")
    for name in source.models:
        for inputs, expected in source.feeds(name):
            with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as temporary:
                check, answers = Path(temporary, "check"), Path(temporary, "answers")
                write(check, inputs, expected)
                run([*command(name), check, answers], where)
                worst = min(worst, snr_db(expected, read_answers(answers, expected)))
    return Replay(by, worst)


def run(command: Sequence[str | Path], where: Path) -> str:
    """Run a command and return what it printed.

    Raises:
        BadModel: It fails, or takes more than five minutes.
    """
    words = list(map(str, command))
    what = Path(words[1] if len(words) > 1 else words[0]).name
    try:
        done = subprocess.run(
            words,
            cwd=where,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadModel(
            f"{what} did not end within {_LIMIT_S} s", fix="pack another trial (--trial KEY)"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise BadModel(
            f"{what} failed: {gist(said[-1]) if said else f'exit code {done.returncode}'}",
            fix="pack another trial (--trial KEY)",
        )
    return done.stdout


def found(*programs: str) -> str | None:
    """Return the path of the first of these programs that is installed."""
    return next((path for one in programs if (path := shutil.which(one))), None)
