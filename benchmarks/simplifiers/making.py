"""Each model through each tool, in a process of its own, and what is wrong with the file."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks.peers.environments import Environment
from benchmarks.peers.making import last_line
from benchmarks.rewrites import outputs, snr
from ortune.core.errors import OrtuneError
from ortune.core.session import Tensors
from ortune.model.io import file

HERE = Path(__file__).resolve().parent
TOOLS = ("ortune", "onnxslim", "onnxsim", "onnxscript")
LIMIT_S = 600
WANTED_DB = 100.0


@dataclass(frozen=True)
class Made:
    """What one tool made of one model.

    Attributes:
        seconds: Loading, simplifying and saving, without imports.
        peak_rss: Bytes of the process at its peak.
        nodes: Of all graphs of the file.
        size: Bytes.
        snr: Lowest over samples and outputs, dB, at the runtime's level ``disabled``; None for
            equal bits.
        error: What is wrong: the tool's failure, an invalid file, or other outputs.
        note: What the tool says of its own work, or why the file is not timed.
        timed: ortune loads it; the runtime may though ONNX' rules are broken.
    """

    tool: str
    version: str = ""
    seconds: float = 0.0
    peak_rss: int = 0
    nodes: int = 0
    size: int = 0
    snr: float | None = None
    error: str = ""
    note: str = ""
    timed: bool = True

    def record(self) -> dict[str, Any]:
        """Return what JSON holds."""
        return asdict(self)


def make(
    tool: str, model: Path, out: Path, env: Environment, feeds: Sequence[Tensors], wanted: Any
) -> Made:
    """Run one tool and examine its file."""
    if tool != "ortune" and env.error:
        return Made(tool, error=f"not installed: {env.error}")
    python = sys.executable if tool == "ortune" else str(env.python)
    script = HERE / "tools" / ("run_ortune.py" if tool == "ortune" else "run_peer.py")
    try:
        done = subprocess.run(
            [python, str(script), tool, str(model), str(out)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
    except subprocess.TimeoutExpired:
        return Made(tool, error=f"no file in {LIMIT_S} s")
    if done.returncode or not out.is_file():
        return Made(tool, error=f"exit {done.returncode}: {last_line(done.stderr or done.stdout)}")
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    return examined(Made(tool, size=out.stat().st_size, **facts), out, feeds, wanted)


def count(path: Path) -> int:
    """Return the nodes of all graphs of a file."""
    return _nodes(onnx.load(path, load_external_data=False).graph)


def examined(made: Made, out: Path, feeds: Sequence[Tensors], wanted: Any) -> Made:
    """Return what is known of a file, and what is wrong with it."""
    facts = asdict(made) | {"nodes": count(out)}
    try:
        onnx.checker.check_model(str(out))
    except Exception as error:
        if "No Op registered" not in str(error) and "No opset import" not in str(error):
            return Made(**facts | {"error": f"invalid: {last_line(str(error))}"})
    try:
        reached = snr(wanted, outputs(out, feeds))
    except Exception as error:
        return Made(**facts | {"error": f"does not run: {last_line(str(error))}"})
    facts["snr"] = reached if math.isfinite(reached) else None
    if not reached >= WANTED_DB:
        facts["error"] = f"other outputs: {reached:.0f} dB"
    try:
        file.load(out)
    except OrtuneError as error:
        facts |= {"timed": False, "note": last_line(str(error).splitlines()[0])}
    return Made(**facts)


def _nodes(graph: onnx.GraphProto) -> int:
    bodies = [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return len(graph.node) + sum(map(_nodes, bodies))
