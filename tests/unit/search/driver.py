"""Run a scenario through the search without a worker, and write down all that it proposes.

``python -m tests.unit.search.driver`` writes the golden file anew: for a deliberate change of what
the search proposes, never to make a rewrite pass.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.search.scenarios import LISTED, SCENARIOS, Outcome, Scenario

from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Sink, ignore_event
from ortune.core.hardware import cpus
from ortune.core.plugins import catalog, codec
from ortune.core.plugins.plugin import Plugin
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.roles import find_deciding_step
from ortune.core.step import AS_IS, Quantizer, Transform
from ortune.core.study import Header, Job
from ortune.core.trial import Interval, Plan, Proposal, Score, Status, Trial, Verdict
from ortune.core.workload import Workload
from ortune.measurement.job import Failure
from ortune.measurement.process import WorkerFailed
from ortune.measurement.worker import tasks
from ortune.search import loop as searching
from ortune.search import optimize as optimizing
from ortune.search import targets as targeting
from ortune.search.adaptive import Adaptive
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import Ledger, read_study, write_header
from ortune.search.experiment.surveys import RegionJournal
from ortune.search.loop import Aim
from ortune.search.mixed_precision.choice import can_mix
from ortune.search.mixed_precision.survey import RegionCost, Survey, SurveyRequest
from ortune.search.policy import Policy
from ortune.search.targets import read_targets

GOLDEN = Path(__file__).with_name("proposals.json")
ADAPTIVE = Adaptive()
BEGAN, PREPARING = 1000.0, 3.0
"""What the clock shows at the start, and the seconds that pass before the search."""


class Killed(BaseException):
    """The process dies here."""


@dataclass(frozen=True)
class Kill:
    """Where the process dies: after so many results, the last one recorded or not."""

    after: int
    recorded: bool


def offered(backend: Backend, environment: str = HERE) -> Capabilities:
    """Return what a worker would answer, had it this process's CPUs."""
    bench = cast(Any, SimpleNamespace(job=SimpleNamespace(backend=backend)))
    return codec.decode(Capabilities, tasks.capabilities(bench))


@dataclass
class Clock:
    """Time that passes only where the script says so."""

    now: float = BEGAN

    def __call__(self) -> float:
        return self.now


def record(
    scenario: Scenario,
    folder: Path,
    policy: Policy = ADAPTIVE,
    before: Path | None = None,
    kill: Kill | None = None,
) -> dict[str, Any]:
    """Search a scenario in a folder and return its proposals in order and what was concluded.

    Args:
        before: The run that a resumed one goes on from, where it is there already.
        kill: Where the process dies; a folder that is there is gone on with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if scenario.kept:
        if before is None:
            record(replace(scenario, kept=0), before := folder / "before", policy)
        lines = (before / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "ledger.jsonl").write_bytes(b"".join(lines[: scenario.kept]))
    log: dict[str, Any] = {"proposals": [], "kill": kill}
    with machine(scenario, folder) as patch:
        _drive(scenario, folder, policy, log, patch)
    del log["kill"]
    if "error" in log:
        return log
    study = read_study(folder)
    log["finished"] = study.finished
    log["notes"] = list(study.notes)
    log["history"] = [f"{stage.name}: {stage.key}" for stage in study.history]
    log["best"] = f"{study.best.part}: {study.best.key}"
    return log


def _drive(
    scenario: Scenario, root: Path, policy: Policy, log: dict[str, Any], patch: pytest.MonkeyPatch
) -> None:
    """Run the loop: its `Attempts` are scripted, what is padded is given."""
    clock = Clock()
    patch.setattr(searching, "Attempts", partial(Scripted, scenario, clock, log))
    cut = parse_plugin(Backend, scenario.cut) if scenario.cut else None
    workload = parse_plugin(Workload, scenario.workload)
    own = tuple(parse_plugin(Transform, text) for text in scenario.own)
    splits = workload.splits(cpus.effective_cpus())
    targets = [replace(t, splits=splits, rules=own) for t in read_targets(scenario.on)]
    budget, base = Budget.parse("cosine>=0.99"), parse_plugin(Backend, scenario.baseline)
    job = Job("toy.onnx", "m", "d", budget, "", workload, base, {}, {}, scenario.on)
    write_header(root, Header(job, scenario.facts))
    context = Context(root, job, scenario.facts, {}, {}, {}, {}, "", timeout_s=1.0)
    context = replace(context, by_region=bool(scenario.pieces) and scenario.by_region)
    aim = Aim(scenario.seconds, BEGAN, scenario.target, scenario.strict, clock)
    patch.setattr(optimizing, "propose_buckets", lambda context, note: cut)
    explore = partial(optimizing.explore_space, context, targets, scenario.exact)
    clock.now += PREPARING
    try:
        searching.run_search(context, explore, policy, aim, ignore_event)
    except (OrtuneError, KeyboardInterrupt, Killed) as error:
        log["error"] = [type(error).__name__, *str(error).splitlines()]


@contextmanager
def machine(scenario: Scenario, folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """Pretend the scenario's CPUs and plugins, whatever is installed here."""
    flags = folder / "cpuinfo"
    flags.write_text(f"flags : {scenario.flags}\n")
    every = catalog.list_plugins

    def listed(base: type[Plugin]) -> list[str]:
        return [n for n in every(base) if base.folder not in LISTED or n in LISTED[base.folder]]

    with pytest.MonkeyPatch.context() as patch:
        held = set(range(scenario.cpus))
        patch.setattr(os, "sched_getaffinity", lambda pid: held, raising=False)
        patch.setattr(cpus, "list_cgroups", lambda *_: [])
        patch.setattr(cpus, "CPUINFO", flags)
        patch.setattr(catalog, "list_plugins", listed)
        for name in (
            "query_capabilities",
            "require_backend_with_hint",
        ):  # a worker would not pretend
            patch.setattr(targeting, name, offered)
        patch.setattr(targeting, "find_further_backends", lambda known: ())
        patch.setattr(os, "fsync", lambda _: None)  # nothing here must outlive a power cut
        cpus.instruction_sets.cache_clear()
        cpus.cpu_model.cache_clear()
        try:
            yield patch
        finally:
            cpus.instruction_sets.cache_clear()
            cpus.cpu_model.cache_clear()


@dataclass
class Scripted:
    """Stands in for the search's `Attempts`: a ledger of its own, results by the script."""

    scenario: Scenario
    clock: Clock
    log: dict[str, Any]
    context: Context
    pair_seconds: float
    sink: Sink
    stack: ExitStack
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.context.root)
        self.journal = RegionJournal(self.context.root)
        self.log["pair seconds"] = round(self.pair_seconds, 3)

    def trial_key(self, plan: Plan) -> str:
        """Return what counts of a plan, spelled; a recipe's name does not."""
        return f"{', '.join(map(str, plan.recipe.steps))} @ {plan.backend}".lstrip()

    def add_note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)
        self.sink(Note(text))

    def measure_baseline(self) -> None:
        """Record the original."""
        plan = Plan(AS_IS, self.context.job.baseline)
        if self.ledger.find(self.trial_key(plan), "search") is None:
            self._proposed("baseline", plan)
            outcome = replace(self._outcome("baseline", plan), ratio=1.0)
            self._pass(outcome)
            self._recorded("search", plan, outcome, Proposal(plan, "baseline"))

    def try_plan(self, proposal: Proposal, *, always_score: bool = False, **_: Any) -> Trial:
        """Return the plan's trial, known or scripted."""
        plan, stage = proposal.plan, proposal.stage
        known = self.ledger.find(self.trial_key(plan), "search")
        if known is not None:
            return known
        self._proposed(stage, plan, ["always scored"] if always_score else [])
        outcome = self._outcome(stage, plan)
        self._pass(outcome)
        if outcome.does == "changes nothing":
            text = f"{plan.recipe.name}: nothing to change, not tried"
            if text not in self.notes:
                self.add_note(text)
            trial = Trial(
                *(self.trial_key(plan), plan, "search", Status.UNCHANGED),
                seconds=outcome.seconds,
                stage=proposal.stage,
            )
            self.ledger.append(trial)
            return trial
        return self._recorded("search", plan, outcome, proposal, always_score=always_score)

    def measure_final(
        self,
        trial: Trial,
        seconds: float | None = None,
        is_enough: Callable[[Interval, bool], bool] = lambda ratio, accepted: False,
    ) -> Trial:
        """Return the finalist's trial, known or scripted; its time is that of all pairs."""
        known = self.ledger.find(trial.key, "final")
        if known is not None:
            return known
        self._proposed("final", trial.plan)
        outcome = self._outcome("final", trial.plan)
        self._pass(outcome)
        proposal = Proposal(trial.plan, "final")
        return self._recorded("final", trial.plan, outcome, proposal, always_score=True)

    def survey_regions(self, request: SurveyRequest, seconds: float) -> Survey:
        """Return what there is to know of the pieces; what each costs is in a unit of its own."""
        self._proposed("survey", request.plan)
        outcome = self._outcome("survey", request.plan)
        outcome = replace(outcome, seconds=min(seconds, outcome.seconds))
        self._pass(outcome)
        regions = tuple(
            RegionCost(
                *(one.name, (one.name, f"{one.name}/act"), one.name, ("Conv",)),
                Interval(one.loses / 50, one.loses / 60, one.loses / 40),
                Interval(one.gains, one.gains - 0.004, one.gains + 0.004),
            )
            for one in self.scenario.pieces
        )
        whole = self.scenario.together[0] * sum(one.loses / 50 for one in self.scenario.pieces)
        key = self.trial_key(request.plan)
        found = Survey(key, request.plan, regions, whole, "share", outcome.seconds)
        self.journal.add(found)
        self._die(recorded=True)
        return found

    def _die(self, *, recorded: bool) -> None:
        kill = self.log["kill"]
        if kill == Kill(len(self.log["proposals"]), recorded):
            raise Killed

    def _proposed(self, stage: str, plan: Plan, marks: Sequence[str] = ()) -> None:
        marked = "".join(f" [{mark}]" for mark in marks)
        self.log["proposals"].append(
            f"{stage}: {plan.recipe.name} = {self.trial_key(plan)}{marked}"
        )

    def _pass(self, outcome: Outcome) -> None:
        """Let the time of an attempt pass; some do not end well for the whole search."""
        self.clock.now += outcome.seconds
        self._die(recorded=False)
        if outcome.does == "is interrupted":
            raise KeyboardInterrupt
        if outcome.does == "ends the original":
            raise WorkerFailed(Failure("died with signal 9", "run job.json"), None)  # type: ignore[arg-type]

    def _outcome(self, stage: str, plan: Plan) -> Outcome:
        found, text = usual(plan, stage, self.trial_key(plan)), f"{stage}: {self.trial_key(plan)}"
        if self.scenario.pieces:
            found = by_pieces(plan, found, self.scenario)
        for rule in self.scenario.rules:
            if re.search(rule.where, text):
                found = replace(found, **rule.gives)
        return found

    def _recorded(
        self, part: str, plan: Plan, outcome: Outcome, by: Proposal, *, always_score: bool = False
    ) -> Trial:
        """Judge as the real attempts do: accuracy first, then time."""
        blank = Trial(
            self.trial_key(plan),
            plan,
            part,
            Status.FAILED,
            seconds=outcome.seconds,
            stage=by.stage,
            neighbour_of=by.neighbour_of,
        )
        trial = replace(blank, why="it crashed", error="it crashed")
        if outcome.does != "crashes":
            value = outcome.ratio
            ratio = Interval(value, value * (1 - outcome.width), value * (1 + outcome.width))
            verdict = Verdict(outcome.verdict)
            scored = always_score or ratio.low < 1.05
            score = Score("cosine", 1 - 0.01 * outcome.lost, 1.0, 1.0, 1.0, 32, verdict)
            slow = Status.SLOWER if ratio.low > 1 or not scored else Status.OK
            status = Status.FAILS if scored and verdict is Verdict.FAILS else slow
            trial = replace(blank, status=status, ratio=ratio, scores=(score,) if scored else ())
        self.ledger.append(trial)
        self._die(recorded=True)
        return trial


def by_pieces(plan: Plan, found: Outcome, scenario: Scenario) -> Outcome:
    """Return what comes of a plan of regions: sums over those in integers, with what is shared."""
    at = find_deciding_step(plan.recipe.steps)
    if at is None or not can_mix(plan.recipe):
        return replace(found, ratio=0.98, verdict="proved")
    step = plan.recipe.steps[at]
    out = getattr(step, "exclude", ())
    pieces = [one for one in scenario.pieces if one.name not in out]
    all_of_loss, all_of_gain = scenario.together
    lost = sum(one.loses for one in pieces) * (all_of_loss if len(pieces) > 1 else 1)
    ratio = 1 - sum(one.gains for one in pieces) * (all_of_gain if len(pieces) > 1 else 1)
    ratio += 0.02 * (_share(type(step).name(), str(plan.backend)) - 0.5)
    return replace(found, ratio=ratio, lost=lost, verdict="fails" if lost > 1 else "proved")


def usual(plan: Plan, stage: str, text: str) -> Outcome:
    """Return what comes of a plan unless a rule says otherwise: by its steps and settings alone.

    The first quantizer brings much, each transform and each setting a little or nothing, and
    finalists differ from the search by up to half a percent.
    """
    ratio, gained = 1.0, False
    for step in plan.recipe.steps:
        share = _share(str(step))
        large = isinstance(step, Quantizer) and not gained
        gained = gained or large
        ratio *= 0.55 + 0.4 * share if large else 0.985 + 0.02 * share
    for setting in re.findall(r"[^\s,()\[\]]+", str(plan.backend))[1:]:
        ratio *= 0.94 + 0.1 * _share(setting)
    ratio *= 1 + 0.01 * (_share(stage == "final", text) - 0.5)
    accuracy = _share("accuracy", text) if plan.lossy else 1.0
    verdict = "fails" if accuracy < 0.3 else "likely" if accuracy < 0.5 else "proved"
    return Outcome(ratio, verdict, seconds=0.5 + _share("seconds", text))


def _share(*parts: object) -> float:
    """Return a number from 0 to 1 that looks random and is the same everywhere."""
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return int(digest[:8], 16) / 16**8


def write() -> None:
    """Write the golden file anew."""
    with TemporaryDirectory() as folder:
        found = {name: record(one, Path(folder) / name) for name, one in SCENARIOS.items()}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
