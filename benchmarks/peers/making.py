"""Files made by the peers' tools; what was made once from the same things is taken again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.environments import CACHE, HERE, Environment, cpu_time

TOOLS = {
    "ort": "onnxruntime's tools",
    "olive": "Olive",
    "optimum": "Optimum",
    "nncf": "NNCF",
    "modelopt": "ModelOpt",
    "quark": "Quark",
    "onc": "onnx-neural-compressor",
}
RECIPES: dict[str, tuple[str, ...]] = {
    "ort": (
        "static, per channel",
        "static, per tensor",
        "dynamic",
        "MatMulNBits 4 bits",
        "float16",
        "transformers.optimizer",
    ),
    "olive": ("auto-opt, int8", "OnnxStaticQuantization"),
    "optimum": ("dynamic, avx512_vnni", "static, avx512_vnni"),
    "nncf": ("default", "hinted"),
    "modelopt": ("int8, rest float16", "int8, rest float32"),
    "quark": ("U8S8_AAWS", "INT8 default"),
    "onc": ("static", "SmoothQuant"),
}
TRANSFORMERS_ONLY = ("transformers.optimizer",)
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
        note: What the tool's script says of the file.
        error: How it failed; empty when there is a file.
    """

    tool: str
    recipe: str
    key: str
    version: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    size: int = 0
    peak_rss: int = 0
    note: str = ""
    error: str = ""

    def path(self, case: str) -> Path:
        """Where its file lies."""
        return _folder(case, self.tool, self.recipe) / "model.onnx"


def recipes(tool: str, case: Case) -> Iterable[str]:
    """Yield the recipes of a tool that fit a kind of model."""
    for recipe in RECIPES[tool]:
        if case.transformer or recipe not in TRANSFORMERS_ONLY:
            yield recipe


def make(case: Case, model: Path, samples: Path, env: Environment, recipe: str) -> Made:
    """Run one recipe in its tool's environment, or return what it did with the same inputs."""
    key = _key(model, samples, env, recipe)
    folder = _folder(case.name, env.tool, recipe)
    known = folder / "made.json"
    if known.is_file():
        before = Made(**json.loads(known.read_text()))
        if before.key == key:
            return before
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = _run(case, model, samples, env, recipe, key)
    known.write_text(json.dumps(asdict(made)))
    return made


def _run(case: Case, model: Path, samples: Path, env: Environment, recipe: str, key: str) -> Made:
    """Run in a folder of its own, from which the model alone is taken."""
    if env.error:
        return Made(env.tool, recipe, key, error=f"not installed: {env.error}")
    kind = "transformer" if case.transformer else "cnn"
    with TemporaryDirectory(prefix="ortune-peer-") as work:
        out = Path(work) / "model.onnx"
        script = HERE / "tools" / f"run_{env.tool}.py"
        command = [env.python, script, model, samples, out, recipe, kind]
        start, before = time.monotonic(), cpu_time()
        try:
            done = subprocess.run(
                [str(word) for word in command],
                cwd=work,
                env=os.environ | _QUIET,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            code, said, complaint = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            code, said, complaint = None, "", ""
        spent = {
            "seconds": round(time.monotonic() - start, 1),
            "cpu_s": round(cpu_time() - before, 1),
        }
        facts, error = outcome(code, said, complaint, out.is_file())
        if error:
            return Made(env.tool, recipe, key, error=error, **spent)
        target = _folder(case.name, env.tool, recipe)
        parts = [out, *(Path(work) / name for name in _external(out))]
        size = sum(part.stat().st_size for part in parts)
        for part in parts:
            shutil.move(part, target / part.name)
    return Made(env.tool, recipe, key, size=size, **spent, **facts)


def outcome(
    code: int | None, said: str, complaint: str, there: bool
) -> tuple[dict[str, Any], str]:
    """Read a finished run: the facts of its last line, or how it failed.

    Args:
        code: Exit code; None when it was stopped for its time.
        said: Standard output.
        complaint: Standard error.
        there: A file was written.
    """
    if code is None:
        return {}, f"no file in {LIMIT_S} s"
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


def _folder(case: str, tool: str, recipe: str) -> Path:
    return CACHE / tool / "made" / case / re.sub(r"\W+", "-", recipe.lower()).strip("-")


def _key(model: Path, samples: Path, env: Environment, recipe: str) -> str:
    digest = hashlib.sha256(f"{env.key} {recipe}".encode())
    scripts = [HERE / "tools" / name for name in ("task.py", f"run_{env.tool}.py")]
    for path in (model, *sorted(samples.iterdir()), *scripts):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
