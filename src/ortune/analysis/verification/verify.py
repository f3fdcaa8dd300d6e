"""Whether one model gives the answers of another, within a budget."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ortune.analysis.verification import bisect as bisecting
from ortune.analysis.verification.requests import Verify
from ortune.backends.cpu import Cpu
from ortune.backends.simulated import Simulated
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.core.event import Sink, without_notes
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.self_agreement import SelfAgreement
from ortune.core.session import Tensors
from ortune.core.step import Recipe
from ortune.core.study import SampleScores
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Plan, Score, Verdict
from ortune.data.stream import Stream
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.accuracy import require_provable
from ortune.measurement.environment import find_interpreter
from ortune.measurement.job import MAIN
from ortune.measurement.process import translate_failures
from ortune.measurement.timing.turns import wait_until_ready
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.ledger import read_sample_scores
from ortune.search.experiment.prepare import prepare_context
from ortune.search.experiment.scores import score_plan

_OTHER = "0"
"""Key of the other model, of which there is one."""


@dataclass(frozen=True)
class SaturatedLayer:
    """What 16-bit sums did to one integer layer."""

    name: str
    op: str
    outputs: int  # sums computed over all samples
    saturated: int  # sums that came out wrong
    largest: float  # largest error of a sum, as a share of the largest exact sum


@dataclass(frozen=True)
class Saturation:
    """Every layer that was simulated, and those `left` that would saturate too and are not."""

    isa: str
    layers: tuple[SaturatedLayer, ...]
    left: int


@dataclass(frozen=True, repr=False)
class Comparison(TableResult):
    """How one model's answers stand to another's.

    Attributes:
        scores: The budget's metric first, then those shown beside it.
        rule: How the budget was derived; empty when it was given.
        simulated: What the simulated instruction set changed, layer by layer; None without.
        bisection: Where the answers leave the budget; None when nobody asked, or they do not.
        strict: Only a proof is good enough.
        doubt: What comes before the verdict: the reference does not know the answers, or hardly.
        provable: The reference knows some: where it knows none, nothing else can be as good.
        answers: What each sample scores alone; None where it has no score of its own.
        worst: The samples that lost most, by their index, as far as there are samples.
    """

    headline = ("verdict", "value", "budget", "samples", "synthetic")
    table = "scores"

    scores: tuple[Score, ...]
    budget: Budget
    rule: str
    samples: int
    synthetic: bool
    simulated: Saturation | None = None
    bisection: bisecting.Bisection | None = None
    strict: bool = False
    doubt: str = ""
    provable: bool = True
    answers: SampleScores | None = None
    worst: Mapping[int, Tensors] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether the other model is as good as was asked for, by a reference that can tell."""
        if not self.provable:
            return False
        return self.verdict is Verdict.PROVED or (
            self.verdict is not Verdict.FAILS and not self.strict
        )

    @property
    def value(self) -> float:
        """The score by the budget's metric."""
        return self.scores[0].value

    @property
    def verdict(self) -> Verdict:
        """The budget's verdict."""
        return self.scores[0].verdict or Verdict.FAILS


def run(request: Verify) -> Comparison:
    """Score the other model on the backend against the reference on ``cpu``, sample by sample."""
    return compare_models(request)


def compare_models(request: Verify, agreement: SelfAgreement | None = None) -> Comparison:
    """Do what `run` does, of a reference that has been compared with itself before or has not."""
    _check_bisection(request)
    find_interpreter(request.environment)
    budget = request.read_budget()
    if request.strict and budget is not None:
        require_provable(budget)
    on, simulate = request.backends, request.simulate
    backend = (
        parse_plugin(Backend, on) if simulate is None else _make_simulated_backend(on, simulate)
    )
    reference_path, other_path = Path(request.reference), Path(request.other)
    paths = (reference_path, other_path)
    first, second = (model_facts.read_facts(file.load(path)) for path in paths)
    for kind in ("outputs", "inputs"):
        mine, its = ({spec.name for spec in getattr(facts, kind)} for facts in (first, second))
        if mine != its:
            raise BadModel(
                f"{kind} differ: {reference_path.name} has {sorted(mine)}, "
                f"{other_path.name} has {sorted(its)}",
                fix=f"compare models with the same {kind}",
            )
    experiment = Experiment(
        models={MAIN: reference_path},
        data=request.data,
        labels=request.labels,
        sequence=request.sequence,
        state=tuple(request.state),
        evaluate=request.evaluate or "",
        budget=budget,
        ignored=tuple(request.ignore_output),
        baseline=Cpu(custom_ops=backend.custom_ops),
        shapes=request.shapes,
        ranges=request.ranges,
        time=3600.0,
        agreement=agreement,
    )
    with open_temporary_folder() as folder:
        report = Path(folder) / "saturated.json"
        if isinstance(backend, Simulated):
            backend = replace(backend, report=str(report.resolve()))
        sink = without_notes(request.sink)
        context = prepare_context(experiment, Path(folder), sink, finalists=0)
        backend = backend.leave_out(context.agreement.disable, context.agreement.level)
        there = replace(context, job=replace(context.job, environment=request.environment))
        scores, bisection = score_model(there, other_path, backend, sink, _OTHER), None
        answers = read_sample_scores(context.root, _OTHER)
        worst = {} if answers is None else _read_worst(context, answers)
        if request.bisect and scores[0].verdict is Verdict.FAILS:
            judged = partial(_try_score_model, context, backend, sink)
            bisection = bisecting.bisect_models(
                reference_path, other_path, context, backend, judged, request.folder
            )
        return Comparison(
            scores=scores,
            budget=context.budget,
            rule=context.job.budget_rule,
            samples=len(context.parts["search"].indices),
            synthetic=request.data is None and not request.evaluate,
            simulated=_read_saturation(backend, report),
            bisection=bisection,
            strict=request.strict,
            doubt=context.doubt,
            provable=context.provable,
            answers=answers,
            worst=worst,
        )


verify = make_verb(Verify, run)


def _check_bisection(request: Verify) -> None:
    """Refuse a bisection that cannot be made, and a folder that is taken or stays empty."""
    if request.bisect and request.evaluate:
        problem = "--bisect compares outputs sample by sample, which --evaluate does not allow"
        raise BadSettings(problem, fix="give --data in place of --evaluate")
    if request.out is not None and not request.bisect:
        raise BadSettings(f"-o {request.out} needs --bisect", fix="add --bisect")
    if (
        request.bisect
        and request.folder.exists()
        and not (request.force and request.folder.is_dir())
    ):
        other = "" if request.folder.is_file() else ", or --force"
        raise BadSettings(f"{request.folder} exists", fix=f"give another name{other}")
    if request.environment != HERE and request.bisect:
        raise BadSettings(
            f"--bisect takes models apart here, not in environment '{request.environment}'",
            fix="leave one of them out",
        )


def _read_worst(context: Context, answers: SampleScores) -> Mapping[int, Tensors]:
    """Return the samples that lost most, but none of an evaluate function."""
    if MAIN not in context.feeds:
        return {}
    better = context.budget.metric.higher_is_better
    return answers.read_worst(Stream(context.feeds[MAIN]), higher_is_better=better)


def score_model(
    context: Context, model: Path, backend: Backend, sink: Sink, keep_as: str = ""
) -> tuple[Score, ...]:
    """Run a model over the context's samples and score it.

    Args:
        keep_as: Key to keep each sample's score by; or empty.

    Raises:
        BadModel: It does not run.
    """
    paths, part = dict.fromkeys(context.models, model), context.parts["search"]
    plan = Plan(Recipe(model.name, ()), backend)
    with (
        translate_failures(f"{model} does not run on {backend}"),
        measure.start_worker(context, paths, backend, "verify", sink) as worker,
    ):
        wait_until_ready(worker)
        return score_plan(context, worker, plan, part, keep_as=keep_as)


def _try_score_model(context: Context, backend: Backend, sink: Sink, model: Path) -> Score | None:
    try:
        return score_model(context, model, backend, sink)[0]
    except OrtuneError:
        return None


def _make_simulated_backend(on: str, isa: str) -> Simulated:
    backend = parse_plugin(Backend, on)
    if not isinstance(backend, Cpu):
        raise BadSettings(
            f"--simulate {isa} models onnxruntime's CPU kernels, not '{on}'",
            fix="leave --on or --simulate out",
        )
    kept = {"threads": backend.threads, "custom_ops": backend.custom_ops}
    return codec.build_dataclass(Simulated, {"isa": isa, **kept})


def _read_saturation(backend: Backend, report: Path) -> Saturation | None:
    if not isinstance(backend, Simulated) or not report.is_file():
        return None
    content = json.loads(report.read_text(encoding="utf-8"))
    return codec.decode(Saturation, {"isa": backend.isa, **content})
