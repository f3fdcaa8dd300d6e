"""The verb `optimize`: find the fastest version of a model within an accuracy budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.core import settings
from ortune.core.atomic_write import write_text
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.capabilities import HERE
from ortune.core.custom_ops import equipped
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.event import Note, TimeLeft
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.core.plugins.spelling import parse
from ortune.core.request import verb
from ortune.core.step import Transform
from ortune.core.study import Study
from ortune.core.wording import count
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.accuracy import demand_provable
from ortune.measurement.job import MAIN
from ortune.measurement.process import WorkerFailed, worker_folder
from ortune.search import by_batch, from_torch, warm_start
from ortune.search.adaptive import Adaptive
from ortune.search.experiment import golden
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import (
    Ledger,
    locked,
    read_header,
    read_study,
    read_trials,
    write_ending,
)
from ortune.search.experiment.prepare import prepare
from ortune.search.fixed_shapes import Unfixed, fixing
from ortune.search.loop import FINALISTS, Aim, search
from ortune.search.padding import proposed
from ortune.search.recipe.space import Space, Target
from ortune.search.request import Optimize
from ortune.search.targets import read_targets, spelled_on

_OF_A_CALL = ("verbose", "quiet", "unsafe_pickle")
"""What a settings file does not repeat."""


def run(asked: Optimize) -> Study:
    """Search, write the run's folder and return its study."""
    if asked.strict and asked.budget is not None:
        demand_provable(Budget.parse(asked.budget))
    own = tuple(parse(Transform, text) for text in asked.rules)
    targets = _targets(asked, own)
    original = _baseline(targets) if asked.baseline is None else asked.original
    asked = replace(asked, baseline=original)
    backends = [*(target.backend for target in targets), original]
    _demand_storable(backends)
    root, typed = Path(asked.out), from_torch.repeatable(asked)
    make_folder(root)
    asked, rows = from_torch.exported(asked, root)
    began = monotonic()
    record = warm_start.record_for(asked)
    if asked.batches:
        by_batch.demand(asked, model_facts.facts(file.load(asked.models[0])))
    for one in (target for target in targets if target.environment != HERE):
        asked.sink(Note(f"{one.backend.name()} runs in environment {one.environment}"))
    asked.sink(TimeLeft(asked.time))
    with locked(root):
        demand_asked(root, asked, [*backends, *rows])
        context = prepare(
            asked,
            root,
            asked.sink,
            on=spelled_on(equipped(asked.on, asked.custom_ops).strip(), targets),
            wanted=asked.wanted,
            command=asked.command,
            finalists=FINALISTS * (1 if asked.target_speedup is None else 2),
            by_region=asked.regions,
        )
        if not asked.fixed_shapes:
            _demand_free_shapes(root, own)
        again = settings.write(replace(typed, out=root), but=_OF_A_CALL)
        write_text(root / settings.REPEAT, again)
        exact = asked.data is None and not asked.evaluate
        context = warm_start.begun(context, record, asked.sink, by_region=asked.regions)
        counted = warm_start.concluded(root)
        context = planned(context, targets, exact, asked.fixed_shapes)
        searching = asked.time * (1 - by_batch.SHARE * bool(asked.batches))
        kept = asked.time - searching
        aim = Aim(searching, began, asked.target_speedup, asked.strict, monotonic, kept)
        finding = partial(explore, context, targets, exact, fixed=asked.fixed_shapes)
        search(context, finding, Adaptive(), aim, asked.sink)
        if asked.batches:
            _time_batches(context, asked, replace(aim, seconds=asked.time, afterwards=0.0))
        if rows and read_study(root).finished != "interrupted":
            from_torch.compare(context, rows, asked.sink)
    study = read_study(root)
    if study.finished != "interrupted":
        golden.write(study, context)
        if record is not None and not counted:
            warm_start.learn(study, record, asked.sink)
    else:
        golden.write_inputs(context)
        asked.sink(Note(f"the same command goes on from here: {root}"))
    return study


optimize = verb(Optimize, run)


def _demand_storable(backends: Sequence[Backend]) -> None:
    """Refuse settings that a run may not hold: what a search writes is read again, and handed on.

    Verbs that measure and store no run (`bench`, `tune`, `profile`) take whatever a person types.

    Raises:
        BadSettings: One is set so.
    """
    fix = "leave it out; `ortune bench` and `ortune tune` take it"
    for backend in backends:
        stored.demand(codec.encode(backend), str(backend), fix=fix)


def _targets(asked: Optimize, own: tuple[Transform, ...]) -> list[Target]:
    """Return where to search, with what the request asks of every plan there."""
    targets = [
        replace(
            target,
            splits=asked.driven.splits(target.capabilities.effective_cpus),
            rules=own,
            portable=asked.portable,
        )
        for target in read_targets(equipped(asked.on, asked.custom_ops))
    ]
    _demand_portable(targets)
    for target in targets:
        if why := target.backend.unverified:
            asked.sink(Note(f"{target.backend.name()} is unverified: {why}"))
    return targets


def _time_batches(context: Context, asked: Optimize, aim: Aim) -> None:
    """Time the leading plans of a search at the batches that were asked for."""
    study = read_study(context.root)
    if study.finished == "interrupted":
        return
    pair_seconds = min(2.0, max(0.5, asked.time / 180))
    sweep = by_batch.Sweep(context, study, aim.left, asked.sink, pair_seconds)
    finished = study.finished
    try:
        sweep.run(asked.batches)
    except KeyboardInterrupt:
        asked.sink(Note("interrupted: what was found so far is kept", warning=True))
        finished = "interrupted"
    ending = replace(study.ending, finished=finished, max_latency=asked.max_latency)
    write_ending(context.root, replace(ending, notes=(*ending.notes, *sweep.notes)))


def explore(
    context: Context,
    targets: Sequence[Target],
    exact: bool,
    note: Callable[[str], None],
    *,
    fixed: bool = False,
) -> Space:
    """Return the plans there are; where padding can be cut, those behind buckets too.

    Args:
        fixed: All but the original take the one shape of the samples alone, where they have one.
    """
    space = _plans(context, targets, exact, fixed)
    if fixed:
        note(_fixed(context))
    asked = any(isinstance(target.backend, Bucketed) for target in targets)
    buckets = None if exact or asked else unpadded(context, note)
    return replace(space, buckets=buckets)


def _plans(context: Context, targets: Sequence[Target], exact: bool, fixed: bool) -> Space:
    """Return the plans there are before padding is looked at."""
    job = context.job
    step = None
    with suppress(Unfixed):
        step = fixing(context)
    return Space(
        *(context.facts, targets, job.workload, job.baseline, exact), fixing=step, fixed=fixed
    )


def _demand_free_shapes(root: Path, rules: Sequence[Transform]) -> None:
    """Refuse a run whose plans may take one shape alone, where that is not asked for any more.

    Raises:
        BadSettings: It holds such a plan, and not for one of the user's own rules.
    """
    steps = {step for trial in Ledger(root).trials for step in trial.plan.recipe.steps}
    if any(isinstance(s, Transform) and not s.keeps_io and s not in rules for s in steps):
        raise BadSettings(
            f"{root} holds the run of another job: its plans take one shape (--fixed-shapes)",
            fix="give --fixed-shapes too, or choose another -o folder",
        )


def _fixed(context: Context) -> str:
    """Say what the result will take, or why it stays as it is."""
    try:
        return f"--fixed-shapes: the result takes one shape alone, by {fixing(context)}"
    except Unfixed as why:
        return f"--fixed-shapes changes nothing: {why}"


def planned(
    context: Context, targets: Sequence[Target], exact: bool, fixed: bool = False
) -> Context:
    """Return what is fixed with the recipes there are: their quantizers calibrate in one pass."""
    space = _plans(context, targets, exact, fixed)
    recipes = {
        recipe: None
        for target in targets
        for backend in space.variants(target)
        for recipe in space.recipes(target, backend)
    }
    materials = {
        name: replace(material, planned=tuple(recipes))
        for name, material in context.materials.items()
    }
    return replace(context, materials=materials)


def _demand_portable(targets: Sequence[Target]) -> None:
    """Refuse pins that are bound to this machine where --portable is asked: raise BadSettings."""
    for target in targets:
        if target.portable and not target.backend.portable:
            raise BadSettings(
                f"{target.backend} is bound to this machine's CPU, and --portable was asked",
                fix="leave out --portable, or these settings of --on",
            )


def _baseline(targets: Sequence[Target]) -> Backend:
    """The CPU provider at its best level: pinned threads if any, all custom operators."""
    pinned = [t for t in targets if "threads" in t.pinned]
    own = [t for t in pinned if isinstance(t.backend, Cpu)]
    chosen = next(iter(own or pinned), None)
    ops = tuple(dict.fromkeys(text for t in targets for text in t.backend.custom_ops))
    return Cpu(threads=chosen.backend.threads if chosen else 0, custom_ops=ops)


def make_folder(root: Path) -> None:
    """Make the run's folder.

    Raises:
        BadSettings: It is a file, holds something else, or cannot be written.
    """
    if root.is_dir():
        strange = [p.name for p in root.iterdir() if p.name != "header.json"]
        if strange and not (root / "header.json").is_file() and not (root / "workers").is_dir():
            raise BadSettings(
                f"{root} exists and holds no run, but {strange[0]}", fix="choose another -o folder"
            )
        return
    try:
        (root / "workers").mkdir(parents=True)
    except OSError as error:
        raise BadSettings(
            f"cannot make the folder {root}: {error.strerror}", fix="choose another -o folder"
        ) from None


def unpadded(context: Context, note: Callable[[str], None]) -> Bucketed | None:
    """Return the baseline behind buckets; None where padding cannot be cut, or gains nothing.

    That padding is without effect is proved on the original as it came; what a plan itself
    answers behind the buckets is scored like any other plan's.
    """
    if set(context.models) != {MAIN}:
        return None
    folder = worker_folder(context.root / "workers", "padding")
    folder.mkdir(parents=True, exist_ok=True)
    indices = () if context.evaluate else context.parts["search"].indices
    model, samples = context.models[MAIN], context.feeds[MAIN]
    try:
        found = proposed(model, context.job.baseline, samples, folder, indices)
    except BadData:
        return None
    except WorkerFailed as error:
        note(f"padding is not cut: {error.failure.reason}")
        return None
    except OrtuneError as error:
        note(f"padding is not cut: {error.what}")
        return None
    note(
        f"{100 * found.padding.share:.0f} % of the positions are padding: cut in buckets of "
        f"{', '.join(map(str, found.backend.lengths))}, which compute "
        f"{100 * found.positions:.0f} % of them"
    )
    return found.backend


def demand_asked(root: Path, asked: Optimize, targets: Sequence[Backend]) -> None:
    """Refuse a run whose plans name code or threads that nobody has asked for now.

    Args:
        root: The run's folder; one that holds no run yet passes.
        targets: The backends in it, the baseline's among them.

    Raises:
        BadData: The run holds more.
    """
    header = read_header(root)
    if header is None:
        return
    folders = (root, *(path.parent for path in root.glob("batches/*/ledger.jsonl")))
    plans = [trial.plan for trial in chain.from_iterable(map(read_trials, folders))]
    given = {*stored.code(codec.encode(targets)), asked.evaluate}
    if asked.budget is not None:
        given.update(stored.code(codec.encode(Budget.parse(asked.budget))))
    named = stored.code(codec.encode([header.job, plans]))
    if strange := [name for name in named if name not in given]:
        raise BadData(
            f"the run in {root} names code that was not asked for: '{strange[0]}'",
            fix="do not trust this run, or name that code as when the search began",
        )
    most = max((effective_cpus(), *(stored.threads(backend) for backend in targets)))
    above = max((stored.threads(plan.backend) for plan in plans), default=0)
    if above > most:
        raise BadData(
            f"the run in {root} has a plan of {count(above, 'thread')}, and there are "
            f"{count(effective_cpus(), 'CPU')} here",
            fix="do not trust this run; search again into another -o folder",
        )
