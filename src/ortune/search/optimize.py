"""The verb `optimize`: find the fastest version of a model within an accuracy budget."""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Literal

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.torch.module import ModuleSource
from ortune.backends.torch import Torch
from ortune.core import hub, regular_file, settings
from ortune.core.atomic_write import write_text
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.cluster import is_ray
from ortune.core.custom_ops import add_custom_ops
from ortune.core.errors import (
    BadData,
    BadSettings,
    OrtuneError,
    find_interruption,
    summarize_error,
)
from ortune.core.event import Note, Progress, Sink, TimeLeft
from ortune.core.fields import make_paths
from ortune.core.plugins import codec, stored
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.plugins.user_function import is_function
from ortune.core.request import make_verb
from ortune.core.step import Recipe, Transform
from ortune.core.study import Study
from ortune.core.trial import BESIDE, Plan, Proposal
from ortune.core.wording import format_count, format_duration
from ortune.data.feeds import load_feeds
from ortune.data.sequences.generation import ANSWERS, SAMPLES
from ortune.exporters.export import export_once
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.accuracy import require_provable
from ortune.measurement.devices import find_lease
from ortune.measurement.executors import open_devices, open_executor
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker, WorkerFailed, translate_failures, worker_folder
from ortune.search import by_batch
from ortune.search.adaptive import Adaptive
from ortune.search.experiment import golden
from ortune.search.experiment.at_once import leave_out_unlike
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.ledger import (
    Ledger,
    is_finished,
    keep_now,
    lock_run,
    read_header,
    read_study,
    read_trials,
    write_ending,
)
from ortune.search.experiment.prepare import prepare_context
from ortune.search.fixed_shapes import UnfixableSizes, make_fix_dims
from ortune.search.loop import FINALISTS, Aim, run_search
from ortune.search.padding import choose_position_buckets
from ortune.search.recipe.ahead import BuildsAhead
from ortune.search.recipe.shared import SharedCache
from ortune.search.recipe.space import SearchTarget, Space
from ortune.search.request import Optimize
from ortune.search.targets import read_targets, spell_on

_OF_A_CALL = ("verbose", "quiet", "unsafe_pickle", "executor", "cache", "devices")
"""What a settings file does not repeat."""


def run(request: Optimize) -> Study:
    """Search, write the run's folder and return its study; a finished search goes on."""
    return _run(request, again=True)


def run_once(request: Optimize) -> Study:
    """Search like `run`; a finished search of the same settings stays as it is."""
    return _run(request, again=False)


def _run(request: Optimize, again: bool) -> Study:
    if request.devices:
        with open_devices(request.devices):
            pass  # a name that is wrong is told before the search
    with open_executor(request.executor) as environment:
        return _run_in(environment, request, again)


def _run_in(environment: str, request: Optimize, again: bool) -> Study:
    request = _split_folder(request)
    export = request.make_export(Path(request.out).absolute() / "export" / "model.onnx")
    experiment = request.read_experiment()
    if request.strict and experiment.budget is not None:
        require_provable(experiment.budget)
    rules = tuple(parse_plugin(Transform, text) for text in request.steps)
    experiment = replace(experiment, environment=environment)
    targets = select_targets(request, rules, experiment)
    if request.baseline is None:
        experiment = replace(experiment, baseline=_default_baseline(targets))
    baseline, root = experiment.baseline, Path(request.out)
    backends = [*(target.backend for target in targets), baseline]
    _require_storable(backends)
    if environment != HERE or request.devices:
        _require_no_code(experiment, backends)
    make_folder(root)
    rows: tuple[Backend, ...] = ()
    if export is not None:
        rows = _make_torch_rows(export.source, export_once(export), baseline.threads)
        experiment = replace(experiment, models={MAIN: Path(export.out)})
    began = monotonic()
    if request.batches:
        facts = model_facts.read_facts(file.load(next(iter(experiment.models.values()))))
        by_batch.validate_batches(request.batches, request.max_latency, experiment, facts)
    for remote in (target for target in targets if target.environment != HERE):
        request.sink(Note(f"{remote.backend.name()} runs in environment {remote.environment}"))
    request = replace(request, sink=keep_now(root, request.sink))
    request.sink(TimeLeft(request.time, may_restart=True))
    with lock_run(root):
        cpus = max(target.capabilities.effective_cpus for target in targets)
        # Finalists are chosen once for each step of the budget, or on the way to a target too.
        steps = 1 if experiment.budget is None else len(experiment.budget.steps)
        require_requested(root, experiment, [*backends, *rows], cpus)
        context = prepare_context(
            experiment,
            root,
            request.sink,
            on=spell_on(add_custom_ops(request.on, request.custom_ops).strip(), targets),
            goal=request.goal,
            command=request.command,
            finalists=FINALISTS * (2 if request.target_speedup is not None else steps),
            by_region=request.regions,
        )
        targets = [target.leave_out(context.agreement) for target in targets]
        request.sink(Note(f"--time: {format_duration(request.time)}"))
        if not request.fixed_shapes:
            _require_free_shapes(root, rules)
        repeat, kept = _format_repeat(request, baseline), root / settings.REPEAT
        if not again and is_finished(root) and kept.is_file() and kept.read_text() == repeat:
            return read_study(root)
        write_text(kept, repeat)
        exact = request.data is None and not request.evaluate
        header = read_header(root)
        assert header is not None, "a prepared run has a header"
        by_region = request.regions and header.by_region
        context = replace(context, by_operator=header.by_operator, by_region=by_region)
        context = plan_calibration(context, targets, exact, request.fixed_shapes)
        context = use_other_machines(context, request)
        finding = partial(explore_space, context, targets, exact, fixed=request.fixed_shapes)
        study = _search(context, request, finding, rows, began)
    if study.finished == "interrupted" or study.cut_short:
        request.sink(Note(f"the same command goes on from here: {root}"))
    return study


optimize = make_verb(Optimize, run)


def _split_folder(request: Optimize) -> Optimize:
    """Return the request for the two files of an encoder-decoder's folder; others as they are.

    Both parts are exported into ``OUT/export``. PyTorch answers every sample, and the score is
    the share of its tokens that a plan finds likeliest behind those before them.
    """
    paths = make_paths(request.model)
    folder = hub.find_folder(paths[0]) if len(paths) == 1 and Path(paths[0]).is_dir() else None
    if folder is None or request.evaluate or not folder.config.get("is_encoder_decoder"):
        return request
    if request.data is None:
        raise BadSettings(
            f"{paths[0]} has an encoder and a decoder, whose answers are compared: no data",
            fix="give --data SOURCE: texts, or what the encoder takes",
        )
    make_folder(Path(request.out))
    work = Path(request.out).absolute() / "export"
    files, sources = list[Path](), list[ModuleSource]()
    parts: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
    for part in parts:
        export = request.make_export(work / part / f"{part}.onnx")
        assert export is not None, "a folder without ONNX is a module"
        state = export_once(replace(export, part=part))
        files.append(Path(export.out))
        sources.append(ModuleSource(export.source, str(state), part=part))
    shutil.rmtree(work / SAMPLES, ignore_errors=True)
    inputs = model_facts.read_facts(file.load(files[0])).inputs
    samples = load_feeds(request.data, inputs, work / SAMPLES, settings=folder, sink=request.sink)
    limit = request.memory_limit
    exports = [
        regular_file.read_text(Path(part.weights).with_name("export.json")) for part in sources
    ]
    key = codec.digest([samples.digests, _TOKENS, *(json.loads(text)["key"] for text in exports)])
    answers, written_for = work / ANSWERS, None
    with suppress(OSError, ValueError, LookupError, TypeError, OrtuneError):  # lacking or broken
        written_for = str(json.loads(regular_file.read_text(answers))["key"])
    if written_for != key:
        request.sink(Progress("writing answers by PyTorch"))
        job = WorkerJob({}, Cpu(), {}, worker_folder(work / "workers", "answers"))
        try:
            with (
                translate_failures("PyTorch does not answer", ""),
                Worker(job, timeout_s=_TIMEOUT_S, memory_limit=limit, sink=request.sink) as worker,
            ):
                written = worker.ask(
                    "write_answers",
                    parts=[codec.encode(part) for part in sources],
                    feeds=str(samples.stream),
                    start=folder.start,
                    ends=sorted(folder.ends),
                    count=_TOKENS,
                )
        finally:
            shutil.rmtree(work / "workers", ignore_errors=True)
        kept = {"key": key, "start": folder.start, "groups": samples.groups}
        write_text(answers, json.dumps({**kept, "tokens": written["answers"]}))
    write_text(work / "evaluate.py", _FUNCTION.format(key=key))
    function = f"{work / 'evaluate.py'}:evaluate"
    return replace(request, model=files, data=None, evaluate=function, weights=None)


def _search(
    context: Context,
    request: Optimize,
    explore: Callable[[Callable[[str], None]], Space],
    rows: tuple[Backend, ...],
    began: float,
) -> Study:
    """Search and finish; an interrupt leaves the study of what was found so far."""
    kept = request.time * by_batch.compute_share(request.batches, request.devices)
    aim = Aim(request.time - kept, began, request.target_speedup, request.strict, monotonic, kept)
    try:
        run_search(context, explore, Adaptive(), aim, request.sink)
        if request.batches:
            _time_batches(context, request, replace(aim, seconds=request.time, afterwards=0.0))
        if request.devices and (study := read_study(context.root)).finished != "interrupted":
            seconds = request.time * by_batch.compute_share((), request.devices)
            visit = by_batch.Visit(context, study, seconds, request.sink)
            visit.run(request.devices)
            ending = replace(study.ending, notes=(*study.ending.notes, *visit.notes))
            write_ending(context.root, ending)
        if rows and read_study(context.root).finished != "interrupted":
            _compare_module(context, rows, request.sink)
        study = read_study(context.root)
        try:
            if study.finished == "interrupted":
                golden.write_inputs(context)
            else:
                golden.write_golden_samples(study, context)
        except (OrtuneError, OSError) as error:  # where there is no room for them
            cause = find_interruption(error)
            if cause is None:
                raise
            request.sink(Note(f"no golden samples were written: {cause}", warning=True))
            return _end_early(study)
        return study
    except KeyboardInterrupt:
        if not read_trials(context.root):
            raise
        return _end_early(read_study(context.root))


def _end_early(study: Study) -> Study:
    return replace(study, ending=replace(study.ending, finished="interrupted"))


def _require_storable(backends: Sequence[Backend]) -> None:
    """Refuse settings that a run may not hold: what a search writes is read again, and handed on.

    Verbs that measure and store no run (`bench`, `tune`, `profile`) take whatever a person types.
    """
    fix = "leave it out; `ortune bench` and `ortune tune` take it"
    for backend in backends:
        stored.demand_safe_data(codec.encode(backend), str(backend), fix=fix)


def _require_no_code(experiment: Experiment, backends: Sequence[Backend]) -> None:
    """Refuse what calls code of the user's where workers run on a device: it gets none of it."""
    stored_names = stored.list_code_names(codec.encode([backends, experiment.budget]))
    if names := list(filter(None, [experiment.evaluate, *stored_names])):
        raise BadSettings(
            f"{names[0]} is your own code, which does not run on a device",
            fix="leave it out, or leave out --executor and --devices",
        )


def _format_repeat(request: Optimize, baseline: Backend) -> str:
    """Write the settings that repeat the run; a function in the place of a file is no path."""
    names = map(str, make_paths(request.model))
    model = [name if is_function(name) else Path(name) for name in names]
    repeat = replace(request, model=model, baseline=baseline, out=Path(request.out))
    return settings.format_settings(repeat, but=_OF_A_CALL)


def select_targets(
    request: Optimize, rules: tuple[Transform, ...], experiment: Experiment
) -> list[SearchTarget]:
    """Return where to search, with what the request asks of every plan there.

    Raises:
        BadSettings: --portable is asked, and a setting is bound to this machine.
    """
    on, targets = add_custom_ops(request.on, request.custom_ops), []
    for target in read_targets(on, experiment.environment):
        if request.portable and not target.backend.portable:
            raise BadSettings(
                f"{target.backend} is bound to this machine's CPU, which --portable forbids",
                fix="leave out --portable, or these settings of --on",
            )
        splits = experiment.workload.splits(target.capabilities.effective_cpus)
        targets.append(replace(target, splits=splits, rules=rules, portable=request.portable))
    for target in targets:
        leave_out_unlike(target.backend, target.environment, request.sink)
        if why := target.backend.unverified:
            request.sink(Note(f"{target.backend.name()} is unverified: {why}"))
    return targets


def _time_batches(context: Context, request: Optimize, aim: Aim) -> None:
    """Time the leading plans of a search at the batches that were asked for."""
    study = read_study(context.root)
    if study.finished == "interrupted":
        return
    pair_seconds = min(2.0, max(0.5, request.time / 180))
    sweep = by_batch.Sweep(context, study, aim.remaining_s, request.sink, pair_seconds)
    finished = study.finished
    try:
        sweep.run(request.batches)
    except KeyboardInterrupt:
        request.sink(Note("interrupted: what was found so far is kept", warning=True))
        finished = "interrupted"
    ending = replace(study.ending, finished=finished, max_latency=request.max_latency)
    write_ending(context.root, replace(ending, notes=(*ending.notes, *sweep.notes)))


def explore_space(
    context: Context,
    targets: Sequence[SearchTarget],
    exact: bool,
    note: Callable[[str], None],
    *,
    fixed: bool = False,
) -> Space:
    """Return the plans there are; where padding can be cut, those behind buckets too.

    Args:
        fixed: All but the original take the one shape of the samples alone, where they have one.
    """
    space = _make_space(context, targets, exact, fixed)
    if fixed:
        try:
            note(f"--fixed-shapes: the result takes one shape only, by {make_fix_dims(context)}")
        except UnfixableSizes as why:
            note(f"--fixed-shapes changes nothing: {why}")
    is_bucketed = any(isinstance(target.backend, Bucketed) for target in targets)
    buckets = None if exact or is_bucketed else propose_buckets(context, note)
    return replace(space, buckets=buckets)


def _make_space(
    context: Context, targets: Sequence[SearchTarget], exact: bool, fixed: bool
) -> Space:
    """Return the plans there are before padding is looked at."""
    job = context.job
    step = None
    with suppress(UnfixableSizes):
        step = make_fix_dims(context)
    models = tuple(context.models) if len(context.models) > 1 else ()
    return Space(
        *(context.facts, targets, job.workload, job.baseline, exact),
        fixing=step,
        fixed=fixed,
        models=models,
    )


def _require_free_shapes(root: Path, rules: Sequence[Transform]) -> None:
    """Refuse a run whose plans may take one shape alone, where that is not asked for any more."""
    steps = {step for trial in Ledger(root).trials for step in trial.plan.recipe.steps}
    if any(isinstance(s, Transform) and not s.keeps_io and s not in rules for s in steps):
        raise BadSettings(
            f"{root} holds the run of another job: its plans take one shape (--fixed-shapes)",
            fix="give --fixed-shapes too, or choose another -o folder",
        )


def plan_calibration(
    context: Context, targets: Sequence[SearchTarget], exact: bool, fixed: bool = False
) -> Context:
    """Return what is fixed with the recipes there are: their quantizers calibrate in one pass."""
    space = _make_space(context, targets, exact, fixed)
    recipes = {
        recipe: None
        for target in targets
        for backend in space.list_variants(target)
        for recipe in space.list_recipes(target, backend)
    }
    materials = {
        name: replace(material, planned=tuple(recipes))
        for name, material in context.materials.items()
    }
    return replace(context, materials=materials)


def use_other_machines(context: Context, request: Optimize) -> Context:
    """Return what is fixed with what ``--cache`` shares and what nodes of a cluster will build.

    Raises:
        BadSettings: The cache cannot be opened.
    """
    if request.cache is not None:
        about = codec.digest([context.job.data_digest, dict(context.job.versions)])
        shared = SharedCache(request.cache, about, request.sink)
        materials = {k: replace(item, shared=shared) for k, item in context.materials.items()}
        context = replace(context, materials=materials, shared=shared)
    if not is_ray(request.executor):
        return context
    kind, builds = request.executor.partition("#")[2], context.root / "artefacts"
    ahead = BuildsAhead(context.models, context.materials, builds, kind, request.sink)
    return replace(context, ahead=ahead)


def _default_baseline(targets: Sequence[SearchTarget]) -> Backend:
    """The CPU provider at its best level: pinned threads if any, all custom operators."""
    pinned = [t for t in targets if "threads" in t.pinned]
    cpu_targets = [t for t in pinned if isinstance(t.backend, Cpu)]
    chosen = next(iter(cpu_targets or pinned), None)
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


def propose_buckets(context: Context, note: Callable[[str], None]) -> Bucketed | None:
    """Return the baseline behind buckets; None where padding cannot be cut, or gains nothing.

    That padding is without effect is proved on the original as it came; what a plan itself
    answers behind the buckets is scored like any other plan's.
    """
    if set(context.models) != {MAIN} or find_lease(context.job.environment):
        return None
    folder = worker_folder(context.root / "workers", "padding")
    folder.mkdir(parents=True, exist_ok=True)
    indices = () if context.evaluate else context.parts["search"].indices
    model, samples = context.models[MAIN], context.feeds[MAIN]
    try:
        proposal = choose_position_buckets(model, context.job.baseline, samples, folder, indices)
    except BadData:
        return None
    except (WorkerFailed, OrtuneError) as error:
        why = error.failure.reason if isinstance(error, WorkerFailed) else error.what
        note(f"padding is not cut: {why}")
        return None
    note(
        f"{100 * proposal.padding.share:.0f} % of the positions are padding: cut in buckets of "
        f"{', '.join(map(str, proposal.backend.lengths))}, which compute "
        f"{100 * proposal.positions:.0f} % of them"
    )
    return proposal.backend


def require_requested(
    root: Path, experiment: Experiment, targets: Sequence[Backend], cpus: int
) -> None:
    """Refuse a run whose plans name code or threads that nobody has asked for now.

    Args:
        root: The run's folder; one that holds no run yet passes.
        targets: The backends in it, the baseline's among them.
        cpus: There are where plans run.

    Raises:
        BadData: The run holds more.
    """
    header = read_header(root)
    if header is None:
        return
    folders = (root, *(path.parent for path in root.glob("batches/*/ledger.jsonl")))
    plans = [trial.plan for trial in chain.from_iterable(map(read_trials, folders))]
    settings_of_code = [targets, experiment.budget]
    requested = {*stored.list_code_names(codec.encode(settings_of_code)), experiment.evaluate}
    code_names = stored.list_code_names(codec.encode([header.job, plans]))
    if strange := [name for name in code_names if name not in requested]:
        raise BadData(
            f"the run in {root} names code that was not asked for: '{strange[0]}'",
            fix="do not trust this run, or name that code as when the search began",
        )
    most = max((cpus, *(stored.count_requested_threads(backend) for backend in targets)))
    above = max((stored.count_requested_threads(plan.backend) for plan in plans), default=0)
    if above > most:
        raise BadData(
            f"the run in {root} has a plan of {format_count(above, 'thread')}, and there are "
            f"{format_count(cpus, 'CPU')} there",
            fix="do not trust this run; search again into another -o folder",
        )


_PATIENCE_S = 300.0  # that a request to a module may take: the first run compiles
_SECONDS = 4.0  # of timing that a row gets


def _make_torch_rows(source: str, weights: Path, threads: int) -> tuple[Backend, Backend]:
    """Return a module as backends, eager and compiled; what was saved whole has its weights."""
    is_saved = Path(source).suffix in (".pt", ".pth", ".ts", ".jit", ".pt2")
    eager = Torch(
        threads=threads,
        source=str(Path(source).absolute()) if Path(source).exists() else source,
        weights="" if is_saved else str(weights),
    )
    return eager, replace(eager, compile=True)


def _compare_module(context: Context, rows: tuple[Backend, ...], sink: Sink) -> None:
    """Time the module beside the original and score it: rows of the table, and no more.

    Whatever goes wrong with a row is what the row says.
    """
    patient = replace(
        context, deadlines=replace(context.deadlines, seconds={}), timeout_s=_PATIENCE_S
    )
    with ExitStack() as stack:
        attempts = Attempts(patient, _SECONDS, sink, stack)
        for backend in rows:
            proposal = Proposal(
                Plan(Recipe("PyTorch"), backend), BESIDE, "what the model was exported from"
            )
            try:
                attempts.try_plan(proposal, always_score=True)
            except WorkerFailed as error:
                sink(
                    Note(
                        f"PyTorch was not timed: {summarize_error(error.failure.reason)}",
                        warning=True,
                    )
                )
                return
            except KeyboardInterrupt:
                sink(Note("interrupted: PyTorch was not timed", warning=True))
                return


_TOKENS = 32  # of an answer, at most
_TIMEOUT_S = 1800.0
_FUNCTION = '''"""Score an encoder and its decoder by the answers that PyTorch gave ({key})."""

from pathlib import Path

from ortune.data.sequences.generation import score_answers


def evaluate(run):
    return score_answers(run, Path(__file__).parent)


evaluate.bounds = (0, 1)
'''
