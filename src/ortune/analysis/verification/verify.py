"""Whether one model gives the answers of another, within a budget."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from ortune.analysis.verification import bisect as bisecting
from ortune.analysis.verification.bisect import Bisection
from ortune.analysis.verification.requests import Verify
from ortune.backends.cpu import Cpu
from ortune.backends.simulated import Simulated
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.core.event import Sink, without_notes
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse
from ortune.core.request import request, verb
from ortune.core.result import TableResult
from ortune.core.step import Recipe
from ortune.core.trial import Plan, Score, Verdict
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.accuracy import demand_provable
from ortune.measurement.environment import interpreter
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.turns import ready
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.prepare import prepare
from ortune.search.experiment.request import ExperimentRequest
from ortune.search.experiment.scores import score


@dataclass(frozen=True)
class Saturated:
    """What 16-bit sums did to one integer layer.

    Attributes:
        outputs: Sums computed over all samples.
        saturated: Sums that came out wrong.
        largest: Largest error of a sum, as a share of the largest exact sum.
    """

    name: str
    op: str
    outputs: int
    saturated: int
    largest: float


@dataclass(frozen=True)
class Saturation:
    """Every layer that was simulated.

    Attributes:
        isa: The instruction set.
        layers: In the order of the graph.
        left: Layers that would saturate too and are not simulated.
    """

    isa: str
    layers: tuple[Saturated, ...]
    left: int


@request
class _Whole(ExperimentRequest):
    """Two given files are compared on all samples."""

    whole: ClassVar[bool] = True


@dataclass(frozen=True, repr=False)
class Comparison(TableResult):
    """How one model's answers stand to another's.

    Attributes:
        scores: The budget's metric first, then those shown beside it.
        rule: How the budget was derived; empty when it was given.
        samples: How many were compared.
        synthetic: They were made up.
        simulated: What the simulated instruction set changed, layer by layer; None without.
        bisection: Where the answers leave the budget; None when nobody asked, or they do not.
        strict: Only a proof is good enough.
    """

    headline = ("verdict", "value", "budget", "samples", "synthetic")
    table = "scores"

    scores: tuple[Score, ...]
    budget: Budget
    rule: str
    samples: int
    synthetic: bool
    simulated: Saturation | None = None
    bisection: Bisection | None = None
    strict: bool = False

    @property
    def good(self) -> bool:
        """Whether the other model is as good as was asked for."""
        return self.verdict is Verdict.PROVED or (
            self.verdict is Verdict.LIKELY and not self.strict
        )

    @property
    def value(self) -> float:
        """The score by the budget's metric."""
        return self.scores[0].value

    @property
    def verdict(self) -> Verdict:
        """The budget's verdict."""
        return self.scores[0].verdict or Verdict.FAILS


def run(asked: Verify) -> Comparison:
    """Score the other model on the backend against the reference on ``cpu``, sample by sample."""
    if asked.bisect and asked.evaluate:
        problem = "--bisect judges outputs sample by sample, not by a function"
        raise BadSettings(problem, fix="give --data in place of --evaluate")
    # Refuse a folder that nothing is written into, or that is taken.
    if asked.out is not None and not asked.bisect:
        raise BadSettings(f"-o {asked.out}: verify writes nothing by itself", fix="add --bisect")
    if asked.bisect and asked.folder.exists() and not (asked.force and asked.folder.is_dir()):
        other = "" if asked.folder.is_file() else ", or --force"
        raise BadSettings(f"{asked.folder} exists", fix=f"give another name{other}")
    # Refuse an environment that is not there, or that cannot do what is asked.
    interpreter(asked.environment)
    if asked.environment != HERE and asked.bisect:
        raise BadSettings(
            f"--bisect takes models apart here, not in environment '{asked.environment}'",
            fix="leave one of them out",
        )
    if asked.strict and asked.budget is not None:
        demand_provable(Budget.parse(asked.budget))
    on, simulate = asked.backends, asked.simulate
    backend = parse(Backend, on) if simulate is None else _simulated(on, simulate)
    one, two = Path(asked.reference), Path(asked.other)
    first, second = (model_facts.facts(file.load(path)) for path in (one, two))
    for kind in ("outputs", "inputs"):
        names = [{spec.name for spec in getattr(facts, kind)} for facts in (first, second)]
        if names[0] != names[1]:
            raise BadModel(
                f"{kind} differ: {one.name} has {sorted(names[0])}, "
                f"{two.name} has {sorted(names[1])}",
                fix=f"compare models with the same {kind}",
            )
    request = _Whole(
        one,
        data=asked.data,
        labels=asked.labels,
        sequence=asked.sequence,
        state=asked.state,
        evaluate=asked.evaluate,
        budget=asked.budget,
        ignore_output=asked.ignore_output,
        baseline=Cpu(custom_ops=backend.custom_ops),
        shapes=asked.shapes,
        ranges=asked.ranges,
        time=3600.0,
    )
    with TemporaryDirectory(prefix="ortune-") as folder:
        report = Path(folder) / "saturated.json"
        if isinstance(backend, Simulated):
            backend = replace(backend, report=str(report.resolve()))
        sink = without_notes(asked.sink)
        context = prepare(request, Path(folder), sink)
        there = replace(context, job=replace(context.job, environment=asked.environment))
        scores, found = scored(there, two, backend, sink), None
        if asked.bisect and scores[0].verdict is Verdict.FAILS:
            judged = partial(_judged, context, backend, sink)
            found = bisecting.bisect(one, two, context, backend, judged, asked.folder)
        return Comparison(
            scores=scores,
            budget=context.budget,
            rule=context.job.budget_rule,
            samples=len(context.parts["search"].indices),
            synthetic=asked.data is None and not asked.evaluate,
            simulated=_saturation(backend, report),
            bisection=found,
            strict=asked.strict,
        )


verify = verb(Verify, run)


def scored(context: Context, model: Path, backend: Backend, sink: Sink) -> tuple[Score, ...]:
    """Run a model over the context's samples and score it.

    Raises:
        BadModel: It does not run.
    """
    paths, part = dict.fromkeys(context.models, model), context.parts["search"]
    plan = Plan(Recipe(model.name, ()), backend)
    try:
        with measure.start(context, paths, backend, "verify", sink) as worker:
            ready(worker)
            return score(context, worker, plan, part)
    except WorkerFailed as error:
        raise error.as_bad_model(model, backend) from None


def _judged(context: Context, backend: Backend, sink: Sink, model: Path) -> Score | None:
    """Return the budget's score of a model, None when it does not run."""
    try:
        return scored(context, model, backend, sink)[0]
    except OrtuneError:
        return None


def _simulated(on: str, isa: str) -> Simulated:
    backend = parse(Backend, on)
    if not isinstance(backend, Cpu):
        raise BadSettings(
            f"--simulate {isa} is about onnxruntime's CPU kernels, not '{on}'",
            fix="leave --on or --simulate out",
        )
    kept = {"threads": backend.threads, "custom_ops": backend.custom_ops}
    return codec.build(Simulated, {"isa": isa, **kept})


def _saturation(backend: Backend, report: Path) -> Saturation | None:
    if not isinstance(backend, Simulated) or not report.is_file():
        return None
    found = json.loads(report.read_text(encoding="utf-8"))
    return codec.decode(Saturation, {"isa": backend.isa, **found})
