"""A finished study of a toy model, made by hand: what the bundle and the report are tested on."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.facts import Facts, TensorSpec
from ortune.core.plugins import codec
from ortune.core.step import AS_IS, Edit, Recipe
from ortune.core.study import Contribution, Ending, Header, Job, Study
from ortune.core.trial import (
    Block,
    Burst,
    Interval,
    Measurement,
    Pair,
    Plan,
    Score,
    Status,
    Trial,
    Verdict,
)
from ortune.data import stream
from ortune.graph.io import file
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.workloads.latency import Latency
from ortune.metrics.cosine import Cosine

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
  a = Add(x, w)
  b = Identity(a)
  y = Relu(b)
}
"""
TUNED = MODEL.replace("b = Identity(a)", "").replace("Relu(b)", "Relu(a)")
CLEAN = Recipe("clean")
PARTS = {"calibration": 16, "search": 32, "final": 32}


def study(folder: Path, *, backend: Backend | None = None, tuned: str = TUNED) -> Study:
    """Write a run into `folder` and return its study: the winner is the tuned model."""
    source = write_model(folder / "source" / "toy.onnx", MODEL)
    root = folder / "run"
    artefact = "artefacts/0123"
    built = write_model(root / artefact / "toy.onnx", tuned)
    winner = trial("aa11" * 4, Plan(CLEAN, backend or Cpu(threads=1)), 0.5, artefact=artefact)
    finalist = replace(winner, part="final", ratio=Interval(0.52, 0.51, 0.535))
    header = Header(
        job(source),
        FACTS,
        "ortune optimize toy.onnx --data samples -o run",
        {"": str(source)},
        {name: tuple(range(n)) for name, n in PARTS.items()},
    )
    ending = Ending(
        history=(Contribution("baseline", "ba5e" * 4), Contribution("graph", winner.key)),
        finished="done",
        noise={"load average": "0.10 0.20 0.30", "A/A ratio": "1.001 [0.99, 1.01]"},
        notes=("the budget was derived",),
    )
    trials = (baseline(), winner, *losers(artefact), finalist)
    made = Study(str(root), header, trials, ending)
    write_golden(made, finalist, built)
    write_golden(made, made.baseline, source)
    return made


def changed(study: Study, **changes: Any) -> Study:
    """Return a study with other fields, those of its header and ending among them."""
    parts: dict[str, Any] = {}
    for name in ("header", "ending"):
        held = getattr(study, name)
        own = {f.name for f in fields(held)} & set(changes)
        parts[name] = replace(held, **{key: changes.pop(key) for key in own})
    return replace(study, **parts, **changes)


def write_model(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def write_golden(made: Study, trial: Trial, model: Path, name: str = "") -> None:
    from ortune.search.experiment import golden

    root = Path(made.root)
    samples = [{"x": np.full((2, 4), value, np.float32)} for value in (-1.5, 2.5)]
    stream.write_stream(golden.inputs_path(root, name), samples)
    session = ort.InferenceSession(str(model))
    outputs = ({"y": session.run(["y"], sample)[0]} for sample in samples)
    stream.write_stream(golden.outputs_path(root, name, trial), outputs)


def write_run(study: Study) -> Path:
    """Write a study as a run, so that a verb can read it; return its folder."""
    from ortune.search.experiment.ledger import Ledger, write_ending, write_header

    root = Path(study.root)
    write_header(root, study.header)
    ledger = Ledger(root)
    for trial in study.trials:
        ledger.append(trial)
    write_ending(root, study.ending)
    return root


def job(*sources: Path, names: tuple[str, ...] = ("",)) -> Job:
    digests = [
        [name, file.compute_digest(path)] for name, path in zip(names, sources, strict=True)
    ]
    return Job(
        model=", ".join(str(path) for path in sources),
        model_digest=codec.digest(digests),
        data_digest="d" * 16,
        budget=Budget(Cosine(), 0.999),
        budget_rule="embeddings: the cosine to the original's",
        workload=Latency(),
        baseline=Cpu(),
        versions=package_versions(),
        machine=describe_machine(),
    )


def trial(
    key: str,
    plan: Plan,
    ratio: float,
    *,
    status: Status = Status.OK,
    verdict: Verdict = Verdict.PROVED,
    value: float = 0.9995,
    artefact: str = "",
    why: str = "",
) -> Trial:
    needed = 1200 if verdict is Verdict.LIKELY else None
    return Trial(
        key,
        plan,
        "search",
        status,
        Interval(ratio, ratio - 0.01, ratio + 0.02),
        (Score("cosine", value, 1.0, value - 0.0002, 1.0, 32, verdict, needed, "bootstrap"),),
        size=1_400_000,
        measurement=measurement(ratio),
        edits=(Edit("simplify", 2, seconds=0.1),),
        artefact=artefact,
        why=why or f"{1 / ratio:.2f}x as fast, accuracy {verdict}",
        reproduce="python -m ortune.measurement.worker run/workers/1/job.json",
        seconds=3.5,
    )


def baseline() -> Trial:
    plan = Plan(AS_IS, Cpu())
    made = trial("ba5e" * 4, plan, 1.0, value=1.0, why="the original")
    return replace(made, ratio=Interval(1.0, 1.0, 1.0), size=5_400_000, edits=())


def losers(artefact: str) -> tuple[Trial, ...]:
    rolled_back = Edit("fuse-gelu", 0, kept=False, note="outputs differ by 12 dB")
    return (
        trial(
            "bb22" * 4,
            Plan(Recipe("int8-static"), Cpu()),
            1.3,
            status=Status.SLOWER,
            artefact=artefact,
            why="slower: 1.30 times the original's latency",
        ),
        trial(
            "cc33" * 4,
            Plan(Recipe("fp16"), Cpu()),
            0.4,
            status=Status.FAILS,
            verdict=Verdict.FAILS,
            value=0.91,
            why="cosine 0.91 misses the budget of 0.999",
        ),
        Trial(
            "dd44" * 4,
            Plan(Recipe("int8-dynamic"), Cpu()),
            "search",
            Status.FAILED,
            edits=(rolled_back,),
            why="the worker died with signal 11 (SIGSEGV)",
            error="the worker died with signal 11 (SIGSEGV)",
            reproduce="python -m ortune.measurement.worker run/workers/4/job.json",
        ),
    )


def measurement(ratio: float) -> Measurement:
    base = Burst((1_000_000, 1_010_000, 990_000), (0.0, 0.0, 0.0))
    fast = Burst(tuple(int(ns * ratio) for ns in base.latency_ns), base.waited)
    pair = Pair((Block(base, fast), Block(base, fast)))
    return Measurement((pair,), 5_000_000, 2_000_000, 90_000_000, {"CPUExecutionProvider": 2})


FACTS = Facts(
    ops={"Add": 1, "Identity": 1, "Relu": 1},
    nodes=3,
    parameters=4,
    weight_bytes=16,
    precisions={"float32": 16},
    opset=17,
    ir_version=8,
    inputs=(TensorSpec("x", "float32", ("N", 4)),),
    outputs=(TensorSpec("y", "float32", ("N", 4)),),
)
