"""Batch inference: a model over many rows, in numbered parts that are each written once.

A folder of outputs has ``job.json`` with what the parts are made of, and a ``part-NNNNN.npz``
each, renamed into place when it is whole: the same job goes on where it ended, whatever ended it.
"""

import hashlib
import itertools
import json
import logging
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.answers import find_settings
from ortune.bundle.engine import archive
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import Signature
from ortune.core import atomic_write, hub
from ortune.core.cluster import is_ray, list_node_cpus, open_cluster
from ortune.core.errors import BadData, BadModel, BadSettings, OrtuneError, summarize_error
from ortune.core.event import Note, Progress, Sink, ignore_event
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import arrays, batches, feeds, sizes, sources
from ortune.data.sources import NumberedPart, SourceFile, SourcePart
from ortune.data.stream import Stream
from ortune.graph.io import file as model_file

ROW = "row"
"""Name of the array with the place of every row; one more ``_`` where an output has it."""
_SHARED = "put it where every machine of the cluster sees it under the same path"


@dataclass(frozen=True)
class PartOutcome:
    """One part."""

    number: int
    content: bytes
    rows: int
    backend: str


@dataclass(frozen=True)
class Computer:
    """A model that is open, with what tokenizes its texts: settings of the hub's folder."""

    engine: Engine
    settings: HubFolder | None

    @cached_property
    def fixed_rows(self) -> int:
        """Rows that the model takes at once, no fewer; 0 where it takes any number."""
        rows = batches.count_sample_rows(self.engine.signature.inputs) or 0
        return rows if rows > 1 else 0

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a row is read for: where the model takes several at once they are joined here."""
        specs = self.engine.signature.inputs
        if not self.fixed_rows:
            return tuple(specs)
        return tuple(replace(spec, shape=(1, *(spec.shape or ())[1:])) for spec in specs)

    @property
    def cpus(self) -> int:
        """CPUs that it keeps busy; 0 for all of a machine."""
        call = self.engine[self.engine.models[0]]
        return self.engine.backend.threads * call.serving.instances

    def compute_part(self, part: NumberedPart) -> PartOutcome:
        """Compute a part; BadData, with file and place, where a row cannot be used."""
        joined, rows, _ = self.compute(part)
        content = BytesIO()
        arrays.write_npz(content, joined)
        return PartOutcome(part.number, content.getvalue(), rows, str(self.engine.backend))

    def compute(self, part: SourcePart) -> tuple[dict[str, NDArray[Any]], int, int]:
        """Return the arrays of a part's file, its rows, and the bytes of their inputs."""
        pictures = self.engine[self.engine.models[0]].pictures
        with open_temporary_folder() as folder:
            fed = feeds.load_feeds(
                part,
                self.inputs,
                folder,
                pictures=None if pictures is None else pictures.keys,
                settings=self.settings,
            )
            samples = Stream(fed.stream)
            answers = self._compute_rows(list(samples), fed.places)
            joined = join_outputs(answers, self.engine.signature)
            name = ROW
            while name in joined:
                name += "_"
            rows = {name: np.array(fed.places)}
            return rows | joined, len(answers), samples.widest * len(samples)

    def _compute_rows(self, samples: Sequence[Tensors], places: Sequence[str]) -> list[Tensors]:
        try:
            if self.fixed_rows:
                return list(self._fill_batches(samples))
            return list(self.engine.batch(samples))
        except Exception as error:
            for place, sample in zip(places, samples, strict=True):
                try:
                    list(self._fill_batches([sample])) if self.fixed_rows else self.engine(
                        **sample
                    )
                except Exception as reason:
                    raise BadData(
                        f"{place}: {summarize_error(getattr(reason, 'what', reason))}",
                        fix="correct the row or leave it out, then run the same command again",
                    ) from error
            raise

    def _fill_batches(self, samples: Sequence[Tensors]) -> Iterator[Tensors]:
        """Yield the answer to each row of a model that takes a fixed number of them.

        The last batch is filled up with its last row. Rows of several shapes are of several
        batches.
        """
        count, start = self.fixed_rows, 0
        while start < len(samples):
            batch = samples[start : start + count]
            shapes = [[array.shape for array in sample.values()] for sample in batch]
            alike = next((at for at, shape in enumerate(shapes) if shape != shapes[0]), len(batch))
            filled = [*batch[:alike], *[batch[alike - 1]] * (count - alike)]
            outputs = self.engine(
                **{name: np.concatenate([sample[name] for sample in filled]) for name in filled[0]}
            )
            for name, array in outputs.items():
                if array.shape[:1] != (count,):
                    raise BadModel(
                        f"output '{name}' has no row for each of the {count} that the model takes",
                        fix="export the model with a dynamic batch",
                    )
            for place in range(alike):
                yield {name: array[place : place + 1] for name, array in outputs.items()}
            start += alike


def join_outputs(answers: Sequence[Tensors], signature: Signature) -> dict[str, NDArray[Any]]:
    """Concatenate every output along its first dimension; scalars are stacked.

    Where a dimension differs between answers all are padded with zeros, and an array
    ``NAME.shape`` [answers, rank] has the shape of each. It is there too where the model leaves
    open more than the rows that inputs and outputs share, so that every part has it. Raises
    BadData: the number of dimensions differs between answers.
    """
    joined: dict[str, NDArray[Any]] = {}
    firsts = {spec.shape[0] for spec in signature.inputs if spec.shape}
    specs = {spec.name: spec.shape or (None,) for spec in signature.outputs}
    for name, first in answers[0].items():
        values = [answer[name] for answer in answers]
        if len({array.ndim for array in values}) > 1:
            raise BadData(
                f"output '{name}' has another number of dimensions for every row",
                fix="export the model with outputs of one form",
            )
        if not first.ndim:
            joined[name] = np.stack(values)
            continue
        shapes = np.array([array.shape for array in values])
        widest = shapes.max(0)[1:]
        sizes.require_memory(
            int(shapes[:, 0].sum() * widest.prod()) * first.dtype.itemsize, f"output '{name}'"
        )
        if (shapes[:, 1:] != widest).any():
            values = [
                np.pad(array, [(0, 0), *((0, int(n)) for n in widest - array.shape[1:])])
                for array in values
            ]
        joined[name] = np.concatenate(values)
        first_dim, *later_dims = specs.get(name, (None,))
        fixed = first_dim in firsts and all(isinstance(dim, int) for dim in later_dims)
        if not fixed or (shapes != shapes[0]).any():
            joined[f"{name}.shape"] = shapes
    return joined


@contextmanager
def open_computer(path: Path, arguments: Mapping[str, Any]) -> Iterator[Computer]:
    """Open a bundle or a model with arguments of `load_engine`, and with its errors.

    Raises BadModel: it gives sequences, which are no arrays.
    """
    with open_temporary_folder() as folder, load_engine(path, **arguments) as engine:
        for spec in engine.signature.outputs:
            if "(" in spec.dtype:
                raise BadModel(
                    f"output '{spec.name}' is {spec.dtype}: only arrays can be written",
                    fix="export the model with arrays in its place",
                )
        yield Computer(engine, find_settings(path, folder))


@dataclass(frozen=True)
class _Task:
    """What a worker on Ray is to compute.

    `files` is a reference to name -> content of all that the model consists of, in a list: Ray
    would put the content in the place of a reference that stands alone.
    """

    parts: Sequence[NumberedPart]
    files: Sequence[Any]
    main: str
    arguments: Mapping[str, Any]


class _Worker:
    """Computes parts in an actor of Ray. The model comes once to every machine."""

    def __init__(self, task: _Task) -> None:
        """Do nothing yet: what goes wrong with the model is an answer."""
        self._task = task

    @cached_property
    def _computer(self) -> Computer:
        import ray

        stack = ExitStack()  # open until the process ends
        folder = stack.enter_context(open_temporary_folder())
        for name, content in ray.get(self._task.files[0]).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        self._stack = stack
        main = folder / self._task.main
        return stack.enter_context(open_computer(main, self._task.arguments))

    def __call__(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compute one part; an error is two texts."""
        part = self._task.parts[int(batch["place"][0])]
        try:
            for name, _ in part.slices:
                if not (path := part.folder / name).exists():
                    raise BadData(f"{platform.node()} has no file {path}", fix=_SHARED)
            outcome = self._computer.compute_part(part)
        except OrtuneError as error:
            return {"problem": [error.what], "fix": [error.fix]} | _pack(
                PartOutcome(0, b"", 0, "")
            )
        return {"problem": [""], "fix": [""]} | _pack(outcome)


def _pack(outcome: PartOutcome) -> dict[str, list[Any]]:
    return {name: [value] for name, value in vars(outcome).items()}


class _Pipeline:
    """Ray Data over the parts: it does those of a lost worker again."""

    def __init__(self, task: _Task, cpus: int, gpu: bool) -> None:
        """Plan it, to begin with the first fetch; `cpus` of a worker, 0 the smallest machine's."""
        from ray import data

        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        context = data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        machines, count = list(filter(None, list_node_cpus())), len(task.parts)
        cpus = min(cpus or max(machines), min(machines))
        most = max(1, min(count, sum(machine // cpus for machine in machines)))
        places = data.from_items(
            [{"place": place} for place in range(count)], override_num_blocks=count
        )
        self._rows: Iterator[dict[str, Any]] = iter(
            places.map_batches(
                _Worker,
                fn_constructor_args=(task,),
                batch_size=1,
                compute=data.ActorPoolStrategy(min_size=1, max_size=most, initial_size=most),
                num_cpus=cpus,
                num_gpus=1 if gpu else None,
            ).iter_rows()
        )

    def fetch(self) -> dict[str, Any] | None:
        """Return what a worker answered to one part; None behind the last."""
        return next(self._rows, None)


def compute_on_ray(
    ray: Any,
    parts: Sequence[NumberedPart],
    files: Mapping[str, Path],
    arguments: Mapping[str, Any],
    *,
    cpus: int,
    gpu: bool,
) -> Iterator[PartOutcome]:
    """Yield the parts as workers on a cluster, which `ray` is connected to, have done them.

    `files` are name -> file of all that the model consists of, its own first; `arguments` those of
    `load_engine`. A worker takes `cpus`, 0 for those of the smallest machine, and a GPU if told.
    Raises BadData: as `Computer.compute_part`; OrtuneError: the workers cannot be started, or the
    cluster is gone.
    """
    content = ray.put({name: file.read_bytes() for name, file in files.items()})
    located = [replace(part, folder=part.folder.absolute()) for part in parts]
    task = _Task(located, [content], next(iter(files)), arguments)
    try:
        if ray.util.client.ray.is_connected():  # Ray Data does not run in a client
            actor = ray.remote(num_cpus=0)(_Pipeline).remote(task, cpus, gpu)
            rows = iter(lambda: ray.get(actor.fetch.remote()), None)
        else:
            rows = iter(_Pipeline(task, cpus, gpu).fetch, None)
        for row in rows:
            if problem := row.pop("problem"):
                raise BadData(problem, fix=row["fix"])
            del row["fix"]
            yield PartOutcome(**row)
    except ray.exceptions.RayError as error:
        raise OrtuneError(
            f"the workers on Ray failed: {summarize_error(error)}",
            fix="run the same command again: what is finished stays; `ray status` shows machines",
        ) from error


JOB = "job.json"
_FORMAT = 1
_PARTS, _LEAST, _MOST, _PART_BYTES = 200, 64, 4096, 64 * 2**20
"""Parts that a job is cut into; records of one at least and at most; bytes of its rows at most."""


@dataclass(frozen=True)
class BatchJob:
    """What is computed, here or on Ray (`ortune.core.cluster`), by arguments of `load_engine`.

    `force`: do parts again whose model or input was changed since.
    """

    model: Path
    data: Path
    out: Path
    executor: str = "local"
    engine: Mapping[str, Any] = field(default_factory=dict)
    force: bool = False


@dataclass(frozen=True)
class BatchResult:
    """What was computed, and what really ran it, in the words of every machine.

    `plan` is the bundle's; None for its original and for a plain model.
    """

    plan: str | None
    backends: tuple[str, ...]
    rows: int
    parts: int
    resumed: int
    computed_rows: int
    seconds: float


def run_batch(batch: BatchJob, sink: Sink = ignore_event) -> BatchResult:
    """Compute the parts that are not there yet.

    Raises BadData: a row cannot be used, with its file and place; or the folder of outputs holds
    something else, or parts of what was changed since; BadSettings: there is no such executor;
    OrtuneError: as `load_engine`.
    """
    if batch.executor != "local" and not is_ray(batch.executor):
        raise BadSettings(
            f"unknown executor '{batch.executor}'", fix="write local, ray or ray://HOST:PORT"
        )
    with ExitStack() as stack:
        ray = stack.enter_context(open_cluster(batch.executor)) if is_ray(batch.executor) else None
        computer = stack.enter_context(open_computer(batch.model, batch.engine))
        folder, listing = sources.list_source_files(batch.data, computer.inputs, sink)
        stack.enter_context(_lock_outputs(batch.out))
        job = _open_job(batch, folder, listing, computer)
        missing = [part for part in job if not _find_part(batch.out, part.number).exists()]
        if len(missing) < len(job):
            sink(Note(f"{len(job) - len(missing)} of {len(job)} parts are there already"))
        if ray is None or not missing:
            outcomes: Iterable[PartOutcome] = map(computer.compute_part, missing)
        else:
            computer.engine.close()  # its CPUs may be the cluster's
            outcomes = compute_on_ray(
                ray,
                missing,
                _list_model_files(batch.model),
                {**batch.engine, "require_signature": None},  # it was verified here
                cpus=computer.cpus,
                gpu=computer.engine.backend.runs_on == "gpu",
            )
        records = {part.number: part.records for part in missing}
        total, done, computed, start = sum(records.values()), 0, 0, time.monotonic()
        backends: dict[str, None] = {}
        for outcome in outcomes:
            path = _find_part(batch.out, outcome.number)
            with atomic_write.open_draft(path) as draft, atomic_write.report_write_errors(path):
                draft.write_bytes(outcome.content)
            done, computed = done + records[outcome.number], computed + outcome.rows
            backends[outcome.backend] = None
            rate = computed / (time.monotonic() - start)
            sink(Progress("running rows", done, total, f"{rate:.1f} rows a second"))
        seconds = time.monotonic() - start
    plan = computer.engine.plan
    files = (arrays.open_npz(_find_part(batch.out, part.number)) for part in job)
    rows = sum(next(iter(file.columns.values())).shape[0] for file in files)
    return BatchResult(
        plan=plan.plan if plan else None,
        backends=tuple(backends),
        rows=rows,
        parts=len(job),
        resumed=len(job) - len(missing),
        computed_rows=computed,
        seconds=seconds,
    )


def _list_model_files(path: Path) -> dict[str, Path]:
    """Return name -> file of a bundle, or of a model with its weights and the hub's settings."""
    if archive.is_bundle(path):
        return {path.name: path}
    settings = hub.find_folder(path)
    home = settings.root if settings else path.parent
    model_folder = path.absolute().parent.relative_to(home.absolute())
    located = model_file.list_model_files(path).items()
    files = {
        (model_folder / (path.name if f == path else place)).as_posix(): f for place, f in located
    }
    return files | dict(hub.list_side_files(settings) if settings else ())


def _find_part(out: Path, number: int) -> Path:
    return out / f"part-{number:05}.npz"


@contextmanager
def _lock_outputs(out: Path) -> Iterator[None]:
    conflict = BadData(f"another run writes into {out}", fix="wait for it, or give another -o")
    with atomic_write.hold_lock(out / ".lock", conflict):
        for draft in out.glob(".part-*.part"):  # of a run that was killed
            atomic_write.remove_path(draft)
        yield


def _open_job(
    batch: BatchJob, folder: Path, listing: Sequence[SourceFile], computer: Computer
) -> list[NumberedPart]:
    """Return the job's parts; BadData where the folder holds others, or parts of changed input."""
    path, total = batch.out / JOB, sum(file.records for file in listing)
    if not total:
        raise BadData(f"no samples in {batch.data}", fix="give at least one sample")
    digest = hashlib.sha256(str(batch.engine.get("on")).encode())
    for name, model_path in _list_model_files(batch.model).items():
        with model_path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{name}\0{content}\0".encode())
    model = digest.hexdigest()  # what answers depend on: the model's files and ``--on``
    before = _read_job(path) if path.is_file() else None
    if before is None:
        if strange := [entry.name for entry in batch.out.iterdir() if entry.name != ".lock"]:
            fix = "give another -o: a folder that is new, or of an earlier run of this command"
            raise BadData(f"{batch.out} holds other files: {sorted(strange)[0]}", fix=fix)
        # The records of a part, by the size of the first one's inputs and outputs.
        first = next(file for file in listing if file.records)
        sample = SourcePart(folder, ((first.name, range(1) if first.records > 1 else None),))
        outputs, _, size = computer.compute(sample)
        size += sum(array.nbytes for array in outputs.values())
        most = min(max(total // _PARTS, _LEAST), _MOST, max(1, _PART_BYTES // size))
        fixed = computer.fixed_rows or 1
        records = max(1, most // fixed) * fixed
    else:
        records = before["records"]
    sizes.require_list_memory(total // records)
    job = list(sources.cut_parts(folder, listing, records, model))
    if before is not None:
        _drop_changed_parts(batch, before, model, listing, job)
    document = {
        "format": _FORMAT,
        "model": model,
        "records": records,
        "parts": [part.digest for part in job],
        "files": [[file.name, file.size, file.digest, file.records] for file in listing],
    }
    atomic_write.write_text(path, json.dumps(document) + "\n")
    return job


def _read_job(path: Path) -> dict[str, Any]:
    try:
        job: dict[str, Any] = json.loads(path.read_bytes())
        if job["format"] != _FORMAT:
            raise ValueError(f"its format is {job['format']}")
        records = int(job["records"])
        files = [SourceFile(str(n), int(s), str(d), int(r)) for n, s, d, r in job["files"]]
        return job | {"records": max(1, records), "files": files, "parts": list(job["parts"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"cannot read {path}: {error}", fix="give another -o") from None


def _drop_changed_parts(
    batch: BatchJob,
    before: Mapping[str, Any],
    model: str,
    listing: Sequence[SourceFile],
    job: Sequence[NumberedPart],
) -> None:
    """Remove parts whose model or input changed, where that was asked for; else BadData."""
    digests = [part.digest for part in job]
    pairs = itertools.zip_longest(before["parts"], digests)
    paths = [
        _find_part(batch.out, number) for number, (old, new) in enumerate(pairs) if old != new
    ]
    stale = [path for path in paths if path.exists()]
    if stale and not batch.force:
        changed = sorted({file.name for file in {*before["files"]} ^ {*listing}})
        reason = (
            (changed or [JOB])[0] if before["model"] == model else f"{batch.model.name} or --on"
        )
        raise BadData(
            f"{reason} was changed since {stale[0]} was made from it",
            fix="give another -o, or --force to compute these parts again",
        )
    for path in stale:
        atomic_write.remove_path(path)
