"""Whether one model gives the answers of another, within a budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from ortune.analysis.verification import bisect as bisecting
from ortune.analysis.verification.bisect import Bisection
from ortune.backends.cpu import Cpu
from ortune.backends.simulated import Simulated
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.core.event import silent
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse
from ortune.core.request import request
from ortune.core.result import TableResult
from ortune.core.step import Recipe
from ortune.core.trial import Plan, Score, Verdict
from ortune.experiment import measure
from ortune.experiment.context import Context
from ortune.experiment.prepare import prepare
from ortune.experiment.request import Request
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.turns import ready
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file


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
class _Whole(Request):
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

    @property
    def value(self) -> float:
        """The score by the budget's metric."""
        return self.scores[0].value

    @property
    def verdict(self) -> Verdict:
        """The budget's verdict."""
        return self.scores[0].verdict or Verdict.FAILS


def verify(
    reference: str | Path,
    other: str | Path,
    *,
    data: str | Path | Callable[[], Any] | None = None,
    labels: str | Path | None = None,
    budget: str | None = None,
    on: str = "cpu",
    evaluate: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    simulate: str | None = None,
    bisect: str | Path | None = None,
) -> Comparison:
    """Score `other` on the backend `on` against `reference` on ``cpu``, sample by sample.

    Without data, made-up samples are used and the result says so. `simulate` names the instruction
    set of another CPU, ``avx2``, whose answers `other` is judged by. With `bisect`, where `other`
    fails, the first step and the first node that leave the budget are looked for, and the smallest
    model that shows it is written to this folder.

    Raises:
        OrtuneError: A model, the data or the budget cannot be used, or `other` does not run.
    """
    if bisect is not None and evaluate:
        problem = "--bisect judges outputs sample by sample, not by a function"
        raise BadSettings(problem, fix="give --data in place of --evaluate")
    backend = parse(Backend, on) if simulate is None else _simulated(on, simulate)
    one, two = Path(reference), Path(other)
    _same_interface(one, two)
    request = _Whole(
        one,
        data=data,
        labels=labels,
        evaluate=evaluate,
        budget=budget,
        baseline=Cpu(custom_ops=backend.custom_ops),
        shapes=shapes or {},
        ranges=ranges or {},
        time=3600.0,
    )
    with TemporaryDirectory(prefix="ortune-") as folder:
        report = Path(folder) / "saturated.json"
        if isinstance(backend, Simulated):
            backend = replace(backend, report=str(report.resolve()))
        context = prepare(request, Path(folder), silent)
        scores, found = scored(context, two, backend), None
        if bisect is not None and scores[0].verdict is Verdict.FAILS:
            judged = partial(_judged, context, backend)
            found = bisecting.bisect(one, two, context, backend, judged, Path(bisect))
        return Comparison(
            scores=scores,
            budget=context.budget,
            rule=context.job.budget_rule,
            samples=len(context.parts["search"].indices),
            synthetic=data is None and not evaluate,
            simulated=_saturation(backend, report),
            bisection=found,
        )


def scored(context: Context, model: Path, backend: Backend) -> tuple[Score, ...]:
    """Run a model over the context's samples and score it.

    Raises:
        BadModel: It does not run.
    """
    paths, part = dict.fromkeys(context.models, model), context.parts["search"]
    plan = Plan(Recipe(model.name, ()), backend)
    try:
        with measure.start(context, paths, backend, "verify") as worker:
            ready(worker)
            return measure.score(context, worker, plan, part)
    except WorkerFailed as error:
        raise BadModel(
            f"{model} does not run on {backend}: {error.failure.reason}",
            fix=error.failure.fix or "run `ortune inspect` on it",
        ) from None


def _judged(context: Context, backend: Backend, model: Path) -> Score | None:
    """Return the budget's score of a model, None when it does not run."""
    try:
        return scored(context, model, backend)[0]
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


def _same_interface(one: Path, two: Path) -> None:
    first, second = (model_facts.facts(file.load(path)) for path in (one, two))
    for kind in ("outputs", "inputs"):
        names = [{spec.name for spec in getattr(facts, kind)} for facts in (first, second)]
        if names[0] != names[1]:
            raise BadModel(
                f"{kind} differ: {one.name} has {sorted(names[0])}, "
                f"{two.name} has {sorted(names[1])}",
                fix=f"compare models with the same {kind}",
            )
