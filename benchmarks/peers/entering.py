"""The peers' files as entries of a race: made at a goal, each on the runtimes it is for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES, calibration
from benchmarks.peers.environments import Environment
from benchmarks.peers.goals import Goal
from benchmarks.peers.making import RACED, TOOLS, Made, make, parts
from benchmarks.speed.contestants import Contestant
from benchmarks.speed.race import CLOSE, Pilot
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.hardware.cpus import instruction_sets

OWN = "ortune"
SEEKING = {
    "ort": ("static, per channel", "worst layers left out"),
    "olive": ("search",),
    "nncf": ("accuracy control", "accuracy control, ONNX"),
    "quark": ("auto mixed precision",),
    "onc": ("autotune",),
}
"""Recipes that race however far behind: all that look at the budget, and stock."""
FOR_OPENVINO = ("static, per channel",)
"""Recipes of others than NNCF whose file OpenVINO gets too."""
HOPELESS = 1.1
"""What is so much slower than the original in its pilot does not race: it has lost to doing
nothing."""

Row = dict[str, Any]


def made(name: str, model: Path, goal: Goal, env: Environment, folder: Path) -> Iterator[Made]:
    """Yield what each recipe of a tool did, made now where it is not kept.

    Args:
        folder: The model's, with ``calibration``.
    """
    samples = calibration(name, folder)
    for recipe in RACED[env.tool]:
        one = make(CASES[name], model, samples, env, recipe, goal)
        said = one.error or f"{one.size / 1e6:.1f} MB {one.note}"
        print(f"{name}: {one.tool}, {recipe}: {one.seconds} s, {said}", flush=True)
        yield one


def entries(name: str, files: Sequence[Made], threads: int) -> list[tuple[Contestant, Row]]:
    """Return each file on each runtime that it is for, with what is told of it."""
    found = []
    for one in files:
        facts = {k: v for k, v in asdict(one).items() if k not in ("key", "kind", "file")}
        for backend in _backends(one, threads):
            on = "" if isinstance(backend, Cpu) else f" on openvino {backend.precision}"  # type: ignore[attr-defined]
            entry = Contestant(
                f"{TOOLS[one.tool]}: {one.recipe}{on}", one.path(name), backend, one.error
            )
            found.append((entry, facts | {"error": one.error}))
    return found


def _backends(one: Made, threads: int) -> list[Backend]:
    """Return where a file runs; one that was not made has a single row."""
    native: list[Backend] = []
    if one.tool == "nncf" or one.recipe in FOR_OPENVINO:
        native = _openvino(threads)
    if one.file.endswith(".xml"):
        return native
    return [Cpu(threads=threads), *([] if one.error else native)]


def _openvino(threads: int) -> list[Backend]:
    """Return how OpenVINO may compute what is not quantized: f16 breaks with QDQ models."""
    if Openvino().missing() is not None:
        return []
    brain = any("bf16" in one for one in instruction_sets())
    found: list[Backend] = [Openvino(threads=threads)]
    return found + [Openvino(threads=threads, precision="bf16")] * brain


def size(model: Path) -> int | None:
    """Return the bytes of a model with the files that belong to it; None where there is none."""
    return sum(part.stat().st_size for part in parts(model)) if model.is_file() else None


def racers(rows: Sequence[Row], pilots: Mapping[str, Pilot]) -> list[str]:
    """Return who races.

    ortune's; what looks at the budget, and stock, on each runtime by the faster of its hints; the
    best file within the budget of each tool; and who is close to the best of all. Nobody who was
    clearly slower than the original.
    """
    timed = [row for row in rows if row["name"] in pilots and row["tool"]]
    value = {row["name"]: pilots[row["name"]].ratio.value for row in timed}
    alive = [row for row in timed if value[row["name"]] <= HOPELESS]
    holding = [row for row in alive if row["holds"] and row["tool"] != OWN]
    chosen = {row["name"] for row in timed if row["tool"] == OWN}
    best = min((value[row["name"]] for row in holding), default=0.0)
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in alive:
        kind = _kind(row)
        if row["recipe"] in SEEKING.get(row["tool"], ()):
            groups.setdefault((row["tool"], row["recipe"], kind), []).append(row)
        if row["holds"] and row["tool"] != OWN:
            groups.setdefault((row["tool"],), []).append(row)
            if value[row["name"]] <= CLOSE * best:
                groups.setdefault((row["tool"], row["recipe"], kind), []).append(row)
    for group in groups.values():
        able = [row for row in group if row["holds"]] or group
        chosen.add(min(able, key=lambda row: value[row["name"]])["name"])
    return [row["name"] for row in timed if row["name"] in chosen]


def _kind(row: Mapping[str, Any]) -> str:
    return str(row["backend"]).partition("(")[0]


def installed(env: Environment) -> Row:
    """Return what is told of an environment."""
    return {"install_s": env.seconds, "bytes": env.size, "error": env.error}


def kept(path: Path, name: str, found: Row, order: Sequence[str], about: Row) -> None:
    """Put one model's results beside the others'."""
    known = json.loads(path.read_text())["cases"] if path.is_file() else {}
    known[name] = found
    cases = {one: known[one] for one in order if one in known}
    path.write_text(json.dumps(about | {"cases": cases}, indent=1) + "\n")
