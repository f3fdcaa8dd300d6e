"""Packages for a plain onnxruntime session: model, settings, golden samples, a program.

``settings.json`` holds what the plan sets on a session. A golden sample is a folder that a program
in any language reads and answers: ``inputs.txt`` and ``outputs.txt`` with a line an array, of its
file, type, shape (``1x3x224``, or ``-`` for a single value) and name, and the files of raw
little-endian values.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files as resource_files
from pathlib import Path
from typing import Any

import numpy as np

from ortune.backends.cpu import Cpu
from ortune.bundle.engine.golden import snr_db
from ortune.bundle.target import Replay, Source
from ortune.core.errors import BadModel, summarize_error
from ortune.core.python_process import make_python_command
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.targets.common.replay import ANOTHER

MODEL = "model.onnx"
SETTINGS = "settings.json"
DISABLE = "optimization.disable_specified_optimizers"
_SHARED = "session.use_env_allocators"
_TYPES = {
    *("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("int64", "uint64", "bool"),
}
_LIMIT_S = 300


def explain_cpu_refusal(source: Source) -> str:
    """Say why a plan is more than a session on onnxruntime's own CPU kernels; empty if it is not.

    A provider that is a package of its own is set up in other ways in each language, one that
    bundles several models is no session, and not every language has every type.
    """
    if not isinstance(source.backend, Cpu):
        return f"it runs on '{source.backend.name()}', not on onnxruntime's own CPU kernels"
    if not source.backend.memory_reuse:
        return "memory_reuse=false is an option of onnxruntime's Python API alone"
    if source.plan.custom_ops:
        return "it needs libraries of custom operators"
    for signature in source.manifest.signatures.values():
        for spec in (*signature.inputs, *signature.outputs):
            if spec.dtype not in _TYPES:
                return f"'{spec.name}' is {spec.dtype}, which not every language's API takes"
            if "\n" in spec.name or "\r" in spec.name:
                return f"{spec.name!r} has a line break in its name"
    return ""


def read_cpu_settings(source: Source) -> Cpu:
    """Return the settings of a plan that `explain_cpu_refusal` lets through."""
    assert isinstance(source.backend, Cpu)
    return source.backend


def session_settings(backend: Cpu) -> dict[str, Any]:
    """Return what a session of this backend is opened with, as plain values.

    Counts of 0 take the CPUs at hand. ``entries`` are session keys. With ``small_arena`` the arena
    grows as requested, which is one that is registered for the process.
    """
    entries = backend.build_config_entries()
    if backend.disable:
        entries[DISABLE] = ";".join(backend.disable)
    return {
        "threads": backend.threads,
        "inter_threads": backend.inter_threads if backend.parallel else 1,
        "parallel": backend.parallel,
        "level": backend.level,
        "arena": backend.arena,
        "small_arena": entries.pop(_SHARED, "") == "1",
        "memory_pattern": backend.memory_pattern,
        "entries": entries,
    }


def write_settings(folder: Path, backend: Cpu) -> None:
    """Write ``settings.json``; programs look for it in the folders above the model."""
    text = json.dumps(session_settings(backend), indent=1, sort_keys=True)
    (folder / SETTINGS).write_text(f"{text}\n", encoding="utf-8")


def write_text_file(path: Path, template: str) -> None:
    """Write one of the text files of this folder, such as ``programs/run.py``."""
    text = (resource_files(__package__) / f"{template}.txt").read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def list_model_folders(source: Source, folder: Path) -> dict[str, Path]:
    """Return model name -> its folder: the given one for the only model."""
    if len(source.models) == 1:
        return dict.fromkeys(source.models, folder)
    return {name: folder / label for name, label in source.labels.items()}


def copy_model(source: Source, name: str, home: Path, file: str = MODEL) -> Path:
    """Copy a model with its external data; BadModel where that has the model's own name."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / file
    shutil.copyfile(source.models[name], path)
    for place, data in source.external(name).items():
        if (home / place).exists() or place.partition("/")[0].casefold() == file.casefold():
            raise BadModel(
                f"two of the model's files would be '{place}'", fix="rename its external data"
            )
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data, home / place)
    return path


def write_sample(folder: Path, inputs: Tensors, outputs: Tensors) -> None:
    """Write one sample."""
    folder.mkdir(parents=True, exist_ok=True)
    for label, arrays in (("input", inputs), ("output", outputs)):
        lines = []
        for index, (name, array) in enumerate(arrays.items()):
            values = np.ascontiguousarray(array)
            file = f"{label}_{index}.bin"
            dims = "x".join(map(str, np.shape(array))) or "-"
            lines.append(f"{file} {values.dtype.name} {dims} {name}\n")
            (folder / file).write_bytes(values.astype(values.dtype.newbyteorder("<")).tobytes())
        (folder / f"{label}s.txt").write_text("".join(lines), encoding="utf-8", newline="\n")


def write_sample_folders(source: Source, folder: Path) -> dict[str, Path]:
    """Write every golden sample into folders numbered from 0; return model name -> its folder."""
    places = list_model_folders(source, folder)
    for name, home in places.items():
        for index, (inputs, outputs) in enumerate(source.feeds(name)):
            write_sample(home / str(index), inputs, outputs)
    return places


def write_plain(source: Source, folder: Path, models: Mapping[str, Path]) -> tuple[str, str]:
    """Write models, golden samples and settings; return the first model and its first sample."""
    for name, home in models.items():
        copy_model(source, name, home)
    checks = write_sample_folders(source, folder / "check")
    write_settings(folder, read_cpu_settings(source))
    first = next(iter(models))
    model = (models[first] / MODEL).relative_to(folder).as_posix()
    return model, (checks[first] / "0").relative_to(folder).as_posix()


def read_answers(folder: Path, expected: Tensors) -> Tensors:
    """Return what a program wrote for a sample; BadModel where one lacks or has another size."""
    answers = {}
    for index, (name, array) in enumerate(expected.items()):
        path = folder / f"output_{index}.bin"
        reference = np.asarray(array)
        raw = path.read_bytes() if path.is_file() else b""
        if len(raw) != reference.nbytes:
            raise BadModel(
                f"output '{name}' has {len(raw)} bytes where {reference.nbytes} are expected",
                fix=ANOTHER,
            )
        values = np.frombuffer(raw, reference.dtype.newbyteorder("<"))
        answers[name] = values.astype(reference.dtype).reshape(reference.shape)
    return answers


def replay_python(source: Source, folder: Path, program: str, files: Mapping[str, Path]) -> Replay:
    """Let the package's program in Python answer all golden samples."""
    return replay_program(
        source,
        f"{program}, onnxruntime {version('onnxruntime')}",
        lambda name: make_python_command(folder / program, files[name]),
        where=folder,
    )


def replay_program(
    source: Source, by: str, command: Callable[[str], Sequence[str | Path]], *, where: Path
) -> Replay:
    """Let a program answer all golden samples; BadModel where it fails, hangs or leaves one out.

    `command`: of a model's name, the program and the model's file; the folders of the sample and
    of the answers are added.
    """
    worst = float("inf")
    for name in source.models:
        for inputs, expected in source.feeds(name):
            with open_temporary_folder() as temporary:
                check, answers = Path(temporary, "check"), Path(temporary, "answers")
                write_sample(check, inputs, expected)
                run_command([*command(name), check, answers], where)
                worst = min(worst, snr_db(expected, read_answers(answers, expected)))
    return Replay(by, worst)


def run_command(
    command: Sequence[str | Path],
    where: Path,
    *,
    title: str = "",
    limit_s: float = _LIMIT_S,
    env: dict[str, str] | None = None,
) -> str:
    """Run a command and return what it printed.

    Raises BadModel: it fails, or takes longer than the limit in seconds; `title` is what is said
    to fail, the program's file without it.
    """
    words = list(map(str, command))
    names = words[1:] or words
    title = title or Path(next((word for word in names if Path(word).is_file()), names[0])).name
    try:
        done = subprocess.run(
            words,
            cwd=where,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
            env=env,
        )
    except subprocess.TimeoutExpired:
        raise BadModel(f"{title} did not end within {limit_s:.0f} s", fix=ANOTHER) from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        why = summarize_error(lines[-1]) if lines else f"exit code {done.returncode}"
        raise BadModel(f"{title} failed: {why}", fix=ANOTHER)
    return done.stdout
