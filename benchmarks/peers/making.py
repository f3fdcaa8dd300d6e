"""Files made by the peers' tools; what was made once from the same things is taken again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.peers.cases import Case
from benchmarks.peers.environments import CACHE, HERE, Environment, cpu_time
from benchmarks.peers.goals import Goal

TOOLS = {
    "ort": "onnxruntime's tools",
    "olive": "Olive",
    "optimum": "Optimum",
    "nncf": "NNCF",
    "modelopt": "ModelOpt",
    "quark": "Quark",
    "onc": "onnx-neural-compressor",
}
RACED: dict[str, tuple[str, ...]] = {
    "ort": ("static, per channel", "worst layers left out"),
    "olive": ("OnnxStaticQuantization", "search", "auto-opt, int8"),
    "optimum": ("static, avx512_vnni", "dynamic, avx512_vnni"),
    "nncf": ("accuracy control", "accuracy control, ONNX", "hinted", "default"),
    "modelopt": ("int8, rest float32", "int8, rest float16"),
    "quark": ("auto mixed precision", "U8S8_AAWS", "INT8 default"),
    "onc": ("autotune", "static", "SmoothQuant"),
}
"""Tool -> its recipes: those that look at the budget themselves, and the tool's defaults."""
LIMIT_S = 900
_QUIET = {"OLIVE_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class Made:
    """What one recipe of one tool did.

    Attributes:
        key: Digest of everything that went in.
        seconds: Of the whole process, imports included.
        cpu_s: CPU time of it, which neighbours change little.
        size: Bytes of the file with its external data.
        peak_rss: Bytes of the process and of those that it waited for.
        others: CPUs that the rest of the machine used meanwhile; None where it was not asked.
        note: What the tool's script says of the file.
        error: How it failed; empty when there is a file.
        file: Its name: ``model.onnx``, or ``model.xml`` of OpenVINO's own format.
        kind: Folder of its kind: made as it comes, or for a race with a goal.
    """

    tool: str
    recipe: str
    key: str
    version: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    size: int = 0
    peak_rss: int = 0
    others: float | None = None
    note: str = ""
    error: str = ""
    file: str = "model.onnx"
    kind: str = "made"

    def path(self, case: str) -> Path:
        """Where its file lies."""
        return _folder(case, self.tool, self.recipe, self.kind) / self.file


def make(
    case: Case,
    model: Path,
    samples: Path,
    env: Environment,
    recipe: str,
    goal: Goal | None = None,
) -> Made:
    """Run one recipe in its tool's environment, or return what it did with the same inputs.

    Args:
        goal: What the file must keep and how long it may take; none takes the tool as it comes.
    """
    key = _key(model, samples, env, recipe, goal)
    folder = _folder(case.name, env.tool, recipe, _kind(goal))
    known = folder / "made.json"
    if known.is_file():
        before = Made(**json.loads(known.read_text()))
        if before.key == key:
            return before
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = _run(case, model, samples, env, Made(env.tool, recipe, key, kind=_kind(goal)), goal)
    known.write_text(json.dumps(asdict(made)))
    return made


def _run(
    case: Case, model: Path, samples: Path, env: Environment, blank: Made, goal: Goal | None
) -> Made:
    """Run in a folder of its own, from which the model alone is taken."""
    if env.error:
        return replace(blank, error=f"not installed: {env.error}")
    kind = "transformer" if case.transformer else "cnn"
    limit = LIMIT_S if goal is None else goal.limit_s
    with TemporaryDirectory(prefix="ortune-peer-") as work:
        out = Path(work) / "model.onnx"
        script = HERE / "tools" / f"run_{env.tool}.py"
        command = [str(env.python), str(script), str(model), str(samples), str(out)]
        command += [blank.recipe, kind] + ([] if goal is None else [goal.told()])
        start, before, idle = time.monotonic(), cpu_time(), _idle()
        code, said, complaint = _ended(command, Path(work), limit)
        seconds, cpu_s = time.monotonic() - start, cpu_time() - before
        busy = seconds * (psutil.cpu_count() or 1) - (_idle() - idle)
        made = replace(
            blank,
            seconds=round(seconds, 1),
            cpu_s=round(cpu_s, 1),
            others=round(max(0.0, (busy - cpu_s) / seconds), 2),
        )
        out = next((one for one in (out, out.with_suffix(".xml")) if one.is_file()), out)
        facts, error = outcome(code, said, complaint, out.is_file(), limit)
        if error:
            return replace(made, error=error)
        every = parts(out)
        size = sum(part.stat().st_size for part in every)
        for part in every:
            shutil.move(part, made.path(case.name).parent / part.name)
    return replace(made, size=size, file=out.name, **facts)


def _ended(command: list[str], work: Path, limit: float) -> tuple[int | None, str, str]:
    """Run to its end or its limit: exit code, standard output and error.

    What it started goes with it: tools leave command lines of their own behind.
    """
    process = subprocess.Popen(
        command,
        cwd=work,
        env=os.environ | _QUIET,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, "", ""
    return process.returncode, said, complaint


def _idle() -> float:
    """Return the seconds that all CPUs were idle since the machine started."""
    times = psutil.cpu_times()
    return float(times.idle) + float(getattr(times, "iowait", 0.0))


def outcome(
    code: int | None, said: str, complaint: str, there: bool, limit: float = LIMIT_S
) -> tuple[dict[str, Any], str]:
    """Read a finished run: the facts of its last line, or how it failed.

    Args:
        code: Exit code; None when it was stopped for its time.
        said: Standard output.
        complaint: Standard error.
        there: A file was written.
        limit: Seconds that it had.
    """
    if code is None:
        return {}, f"no file in {limit:.0f} s"
    if code:
        return {}, f"exit {code}: {last_line(complaint or said)}"
    if not there:
        return {}, f"exit 0 without a file: {last_line(complaint or said)}"
    at = said.rfind('{"version"')  # behind a progress bar without an end of line, maybe
    return (json.loads(said[at:]), "") if at >= 0 else ({}, "wrote a file and told nothing")


def last_line(text: str) -> str:
    """Return the last line that says something, without colours and folders of this machine."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if line.strip(" ^~-=|")]
    found = lines[-1] if lines else "no message"
    return re.sub(r"(?<![\w/])/(?:[\w.+-]+/)+", "", found)[:200]


def parts(model: Path) -> list[Path]:
    """Return a model's file and those that belong to it."""
    if model.suffix == ".xml":
        return [model, model.with_suffix(".bin")]
    return [model, *(model.parent / name for name in _external(model))]


def _external(model: Path) -> list[str]:
    import onnx

    loaded = onnx.load(model, load_external_data=False)
    found = {
        entry.value
        for tensor in loaded.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(found)


def _kind(goal: Goal | None) -> str:
    return "made" if goal is None else "raced"


def _folder(case: str, tool: str, recipe: str, kind: str) -> Path:
    return CACHE / tool / kind / case / re.sub(r"\W+", "-", recipe.lower()).strip("-")


def _key(model: Path, samples: Path, env: Environment, recipe: str, goal: Goal | None) -> str:
    digest = hashlib.sha256(f"{env.key} {recipe}".encode())
    scripts = [HERE / "tools" / name for name in ("task.py", f"run_{env.tool}.py")]
    folders = [samples]
    if goal is not None:
        digest.update(f"{goal.metric} {goal.drop} {goal.seconds} {goal.limit_s}".encode())
        more = ["judging.py"] + ["debugging.py"] * (env.tool == "ort")
        scripts += [HERE / "tools" / name for name in more]
        folders.append(goal.data)
    for path in (
        model,
        *(one for folder in folders for one in sorted(folder.iterdir())),
        *scripts,
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
