"""Time models on backends side by side in one interleaved run, alone or in a frame."""

import dataclasses
import hashlib
import typing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal, cast

from ortune.analysis.benchmark.interleave import (
    PER_FRAME,
    BenchResult,
    Contestant,
    Pipeline,
    Ratios,
    TimedRow,
    judge_rows,
    pair_blocks,
    run_contest,
)
from ortune.analysis.benchmark.requests import Bench
from ortune.analysis.benchmark.row_figures import describe_row
from ortune.backends.cpu import Cpu
from ortune.bundle.engine import archive
from ortune.bundle.engine.manifest import HUB
from ortune.bundle.target import unpack_temporarily
from ortune.core import custom_ops, hub, regular_file
from ortune.core.backend import Backend, GraphLevel, graph_level
from ortune.core.capabilities import HERE
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.fields import make_paths
from ortune.core.plugins.spelling import parse_list, parse_plugin
from ortune.core.reading import read_workload
from ortune.core.request import make_verb
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Interval
from ortune.data import sources, stream, synthetic
from ortune.data.reading import Reading
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.machine.counters import find_energy_counters
from ortune.measurement.machine.noise import Advice, compare_snapshots, take_snapshot
from ortune.measurement.process import require_backend
from ortune.measurement.timing import stats
from ortune.measurement.workloads.latency import Latency

_WORKER = "ortune.analysis.benchmark.frame_worker"


def run(request: Bench) -> BenchResult:
    """Time models x backends x levels x threads, at every batch, in one interleaved run.

    With the user's frame around the model where one is asked for.
    """
    on = (request.on,) if isinstance(request.on, str) else request.on
    equipped = [custom_ops.add_custom_ops(spec, request.custom_ops) for spec in on]
    where = tuple(dict.fromkeys(request.environment)) or (HERE,)
    chosen = expand_backends(equipped, request.threads, request.levels, request.sink, where)
    if request.end_to_end:
        return _time_frames(request, chosen, where)
    workloads = [read_workload(request.workload, n) for n in dict.fromkeys(request.batch or (0,))]
    with ExitStack() as stack:
        timed: list[Contestant] = []
        for path in make_paths(request.models):
            if not (path.is_file() and archive.is_bundle(path)):
                timed += [Contestant(path, backend, workloads[0]) for backend in chosen]
                continue
            # Every plan of a bundle is timed with its own backend and settings.
            bundle = stack.enter_context(unpack_temporarily(path))
            settings = hub.find_folder(bundle.folder / HUB)
            for plan in bundle.manifest.plans:
                source = bundle.read_source(plan)
                if len(source.models) > 1:
                    raise BadSettings(
                        f"{path} holds several models", fix="time it with --end-to-end"
                    )
                (model,) = source.models.values()
                contestant = Contestant(model, source.backend, Latency(), title=str(path))
                timed.append(replace(contestant, settings=settings))
        placed = [replace(item, environment=name) for item in timed for name in where]
        groups = [[replace(item, workload=workload) for item in placed] for workload in workloads]
        return time_groups(groups, request)


bench = make_verb(Bench, run)


def race_contestants(contestants: Sequence[tuple[Path, Backend]], **how: Any) -> BenchResult:
    """Time pairs of model and backend, the first as measure; `how`: other fields of `Bench`."""
    request = Bench((), **how)
    driven = read_workload(request.workload, next(iter(request.batch), 0))
    return time_groups(
        [[Contestant(path, backend, driven) for path, backend in contestants]], request
    )


# --- what is timed ------------------------------------------------------------------------------


def expand_backends(
    on: Sequence[str],
    threads: Sequence[int],
    levels: Sequence[str],
    sink: Sink,
    environments: Sequence[str] = (HERE,),
) -> list[Backend]:
    """Return every backend of `on` at every level and thread count, in that order, once each.

    A backend without levels is timed once and the sink is told.

    Raises:
        BackendMissing: One cannot run in one of the environments.
        BadSettings: There is no such environment, a field is given in `on` and to be expanded, or
            no backend has such a level.
    """
    parsed_backends = parse_list(Backend, ",".join(on))
    levels = [graph_level(cast(GraphLevel, level)) for level in levels]
    for backend, fields in parsed_backends:
        for environment in environments:
            require_backend(backend, environment)
        for name, values, option in (("threads", threads, "threads"), ("level", levels, "levels")):
            if values and name in fields:
                raise BadSettings(
                    f"{name} is given in '{backend}' and by --{option}",
                    fix="leave one of them out",
                )
    for count in threads:
        if count < 1:
            raise BadSettings(f"--threads {count} cannot run", fix="give 1 or more: --threads 1,2")
    available_levels = dict.fromkeys(
        level for backend, _ in parsed_backends for level in list_levels(backend)
    )
    for level in levels:
        if level not in available_levels:
            listed = ", ".join(available_levels)
            raise BadSettings(
                f"no backend of --on has a level '{level}'",
                fix=f"use one of: {listed}" if listed else "leave --levels out",
            )
    leveled = [x for backend, _ in parsed_backends for x in _expand_levels(backend, levels, sink)]
    if threads:
        leveled = [replace(variant, threads=count) for variant in leveled for count in threads]
    return list(dict.fromkeys(leveled))


def list_levels(backend: Backend) -> tuple[str, ...]:
    """Return the levels that a backend's ``level`` field takes; empty where it has none."""
    hints = typing.get_type_hints(type(backend))
    return tuple(dict.fromkeys(map(graph_level, typing.get_args(hints.get("level")))))


def _expand_levels(backend: Backend, levels: Sequence[str], sink: Sink) -> list[Backend]:
    allowed = list_levels(backend)
    if not levels:
        return [backend]
    if not allowed:
        sink(Note(f"{backend} has no levels: it is timed once"))
        return [backend]
    if unknown := [level for level in levels if level not in allowed]:
        sink(Note(f"{backend} has no level {', '.join(unknown)}: left out there"))
    changes: list[dict[str, Any]] = [{"level": level} for level in levels if level in allowed]
    return [dataclasses.replace(backend, **change) for change in changes]


# --- models alone -------------------------------------------------------------------------------


def time_groups(groups: Sequence[Sequence[Contestant]], request: Bench) -> BenchResult:
    """Time groups of contestants as asked; see `contest`."""
    if not all(groups):
        raise BadSettings("there is nothing to time", fix="give a model and a backend")
    with open_temporary_folder() as root:
        streams = _write_streams(groups, request, root)
        raced = [
            [TimedRow(contestant, streams[contestant.model]) for contestant in group]
            for group in groups
        ]
        if request.self_check:
            first = groups[0][0]
            raced[0].append(TimedRow(replace(first, again=True), streams[first.model]))
        return _measure_rows(raced, raced, request, root, {})


def _write_streams(
    groups: Sequence[Sequence[Contestant]], request: Bench, root: Path
) -> dict[Path, Path]:
    """Write the samples of every model and return its stream; each must take the largest batch.

    Made-up inputs are given by name for all models together: a name that another model has is that
    one's, and one that none has is refused.
    """
    batch = max(item.workload.batch for group in groups for item in group)
    settings = {item.model: item.settings for group in groups for item in group}
    inputs = {path: model_facts.read_facts(file.load(path)).inputs for path in settings}
    input_names = {item.name for specs in inputs.values() for item in specs}
    streams = {}
    for count, (path, specs) in enumerate(inputs.items()):
        foreign_names = input_names - {item.name for item in specs}
        shapes = {n: shape for n, shape in request.shapes.items() if n not in foreign_names}
        ranges = {n: ends for n, ends in request.ranges.items() if n not in foreign_names}
        streams[path] = synthetic.load_or_generate_feeds(
            request.data,
            specs,
            root / f"{count}",
            batch=batch,
            shapes=shapes,
            ranges=ranges,
            settings=settings[path] or hub.find_folder(path),
            sink=request.sink,
        ).stream
    return streams


def _measure_rows(
    turns: Sequence[Sequence[TimedRow]],
    groups: Sequence[Sequence[TimedRow]],
    request: Bench,
    root: Path,
    of_frames: dict[str, str],
) -> BenchResult:
    """Time rows and return what they come to.

    Args:
        turns: The rows of a group take turns.
        groups: The same rows by what they are compared with: the first of a group is its measure.
        root: Folder for the files of workers.
        of_frames: What rows of whole frames tell in the place of what every row does.

    Raises:
        BadModel: The first row of a group does not run.
    """
    meters, before = find_energy_counters(), take_snapshot()
    run_contest(turns, root, request.time, meters, request.sets, request.sink)
    record = compare_snapshots(before, take_snapshot())
    rows = [row for group in groups for row in group]
    fingerprints: dict[Path, tuple[str, int]] = {}
    for path in dict.fromkeys(row.contestant.model for row in rows):
        if archive.is_bundle(path):
            with regular_file.open_regular(path) as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()[:32]
            fingerprints[path] = digest, path.stat().st_size
        else:
            fingerprints[path] = file.compute_digest(path), file.count_file_bytes(path)
    row_records = [
        describe_row(row, digest, meters, size)
        | (of_frames if "frame" in row.contestant.program else {})
        for row in rows
        for digest, size in [fingerprints[row.contestant.model]]
    ]
    return judge_rows(groups, row_records, record)


# --- models in a frame --------------------------------------------------------------------------


def _time_frames(
    request: Bench, chosen: Sequence[Backend], environments: Sequence[str]
) -> BenchResult:
    """Time a frame around every model on every backend, and every plan of every bundle.

    Every plan has two processes: one runs frames, one the calls that these make of the engine.
    All take turns, so that each ratio is of pairs.

    Raises:
        BadData: The frame fails, does not call the engine, or there are no samples for it.
    """
    contestants: list[Contestant] = []
    for path in make_paths(request.models):
        on = chosen
        if archive.is_bundle(path):
            with archive.open_bundle(path) as (_, manifest):
                plans = dict.fromkeys(plan.backend for plan in manifest.plans)
            on = [parse_plugin(Backend, text) for text in plans]
        contestants += [
            Contestant(path, backend, Latency(), environment=environment)
            for backend in on
            for environment in environments
        ]
    with open_temporary_folder() as folder:
        root, frame = Path(folder), request.end_to_end
        feeds = _write_frame_samples(request, contestants[0].model, root)
        programs = ((_WORKER, "frame", frame), (_WORKER, "model", frame))
        whole, models = (
            [TimedRow(replace(contestant, program=program), feeds) for contestant in contestants]
            for program in programs
        )
        turns = [row for pair in zip(whole, models, strict=True) for row in pair]
        of_frames = {"workload": f"frame({frame})", "measure": PER_FRAME}
        timings = _measure_rows([turns], [whole, models], request, root, of_frames)
    # What each contestant's two rows say together.
    learnt = Ratios([whole]).pool_variance() + Ratios([models]).pool_variance()
    rates = [1e9 / ns if (ns := row.get("typical_ns")) else None for row in timings.rows]
    pipelines = []
    for at, (frame_row, model_row) in enumerate(zip(whole, models, strict=True)):
        beside, share = at + len(whole), None
        if not (frame_row.error or model_row.error):
            share = stats.latency_ratio(pair_blocks(model_row, frame_row), learnt=learnt)
        pipelines.append(
            Pipeline(
                row=at,
                model_row=beside,
                frames_per_s=rates[at],
                model_per_s=rates[beside],
                share=share,
                ratio=timings.ratios[at],
                model_ratio=timings.ratios[beside],
            )
        )
    return replace(timings, pipelines=tuple(pipelines))


def _write_frame_samples(request: Bench, model: Path, root: Path) -> Path:
    """Write what frames are given: what a source yields, whole, or made-up inputs of the model."""
    if archive.is_bundle(model):
        with archive.open_bundle(model) as (_, manifest):
            signatures = list(manifest.signatures.values())
        inputs = signatures[0].inputs if len(signatures) == 1 else ()
    else:
        inputs = model_facts.read_facts(file.load(model)).inputs
    data = request.data
    if data is None:
        shapes, ranges = request.shapes, request.ranges
        return synthetic.load_or_generate_feeds(
            None, inputs, root, shapes=shapes, ranges=ranges, sink=request.sink
        ).stream

    if inputs:
        synthetic.require_input_names(inputs, request.shapes, request.ranges)

    def iterate_samples() -> Iterator[Tensors]:
        reading = Reading(inputs, lambda text: request.sink(Note(text)))
        for block in sources.open_source(data, reading):
            yield {name: column.read() for name, column in block.columns.items()}

    path = root / "frames.stream"
    if not stream.write_stream(path, iterate_samples()):
        raise BadData(
            f"no samples in {sources.describe_source(data)}", fix="give at least one sample"
        )
    return path


# --- the machine --------------------------------------------------------------------------------

_SECONDS, _SETS = 3.0, 3
State = Literal["fit", "disturbed", "not fit"]


@dataclass(frozen=True)
class Fitness:
    """What a short A/A says of the machine at this moment."""

    state: State  # disturbed: fit, but a measurement takes longer and has a wider interval
    equal: Interval | None  # ratio of the model's latency to its own; None where it did not run
    advice: tuple[Advice, ...]  # what is wrong with the machine and what to do, the worst first

    def __str__(self) -> str:
        """Say it in one line."""
        why = "; ".join(map(str, self.advice[:2]))
        if self.state == "not fit":
            return f"this machine is not fit to measure now: {why}"
        share = "an unknown share"
        if self.equal is not None:
            share = f"{100 * max(self.equal.high - 1, 1 - self.equal.low):.1f} % at most"
        spread = f"a model differed from itself by {share}"
        if self.state == "disturbed":
            return f"this machine is fit to measure, but disturbed ({spread}): {why}"
        return f"this machine is fit to measure: {spread}"


def measure_local_fitness() -> Fitness:
    """Time the digit CNN against itself on this machine's CPU provider."""
    with as_file(files("ortune.data.zoo") / "digit_cnn.onnx") as model:
        return measure_fitness(model, Cpu(threads=DigitCnn.threads), DigitCnn.batch)


def measure_fitness(model: Path, backend: Backend, batch: int) -> Fitness:
    """Time a model against itself for a few seconds, in fresh processes.

    Args:
        batch: Samples of a run; a run of less than 0.1 ms says little of the machine.
    """
    try:
        outcome = race_contestants(
            [(model, backend)], batch=batch, time=_SECONDS, sets=_SETS, self_check=True
        )
    except OrtuneError as error:
        return Fitness("not fit", None, (Advice(error.what, error.fix, severe=True),))
    check, judged = outcome.self_check, outcome.judgement
    state: State = "fit"
    if judged.too_noisy:
        state = "not fit"
    elif judged.advice:
        state = "disturbed"
    return Fitness(state, check.ratio if check else None, judged.advice)
