"""Fix everything before the first candidate: data, split, baseline outputs, budget, job."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.backends.cpu import Cpu
from ortune.core import codec
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadData, BadSettings
from ortune.core.event import Note, Sink
from ortune.core.facts import Facts
from ortune.core.study import Job
from ortune.core.workload import Workload
from ortune.data import derive, feeds, split, synthetic
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine import machine, versions
from ortune.measurement.process import Worker, WorkerFailed, worker_folder
from ortune.metrics.score import Score as ScoreMetric
from ortune.model import facts as model_facts
from ortune.model import file
from ortune.recipe.build import Material
from ortune.study.ledger import Header, read_header, write_header
from ortune.study.scene import Part, Scene

_LOAD_TIMEOUT_S = 300
_SHARE = 40
"""Scoring one plan on the search part takes at most this fraction of the time budget (1/40)."""


@dataclass(frozen=True)
class Request:
    """What the user asked for, unread."""

    models: tuple[Path, ...]
    data: str | Path | Callable[[], Any] | None = None
    labels: str | Path | None = None
    calibration: str | Path | Callable[[], Any] | None = None
    evaluate: str = ""
    budget: str | None = None
    baseline: Backend = field(default_factory=Cpu)
    workload: Workload = field(default_factory=Workload)
    shapes: Mapping[str, tuple[int, ...]] | None = None
    ranges: Mapping[str, tuple[float, float]] | None = None
    seconds: float = 180
    memory_limit: int | None = None
    verbose: bool = False
    command: str = ""
    whole: bool = False
    """Score all samples as one part, thinning none: for comparing two given files."""

    @property
    def names(self) -> dict[str, Path]:
        """Name -> file; the only model is named ""."""
        if len(self.models) == 1:
            return {MAIN: self.models[0]}
        found = {path.stem: path for path in self.models}
        if len(found) < len(self.models):
            raise BadSettings("two models have the same file name", fix="rename one of them")
        return found


def prepare(request: Request, root: Path, sink: Sink) -> Scene:
    """Load models and data, run the baseline, fix the budget; write or check the run's header.

    Raises:
        OrtuneError: Models, data or budget cannot be used, or the folder holds another job's run.
    """
    models = request.names
    if len(models) > 1 and not request.evaluate:
        raise BadSettings(
            f"{len(models)} models are given without --evaluate",
            fix="give --evaluate pkg.module:function, which runs them together",
        )
    loaded = {name: model_facts.facts(file.load(path)) for name, path in models.items()}
    return _Preparation(request, root, sink, models, loaded).scene()


class _Preparation:
    """The steps of `prepare`, sharing what the earlier ones found."""

    def __init__(
        self,
        request: Request,
        root: Path,
        sink: Sink,
        models: Mapping[str, Path],
        loaded: Mapping[str, Facts],
    ) -> None:
        self.request, self.root, self.sink = request, root, sink
        self.models, self.loaded = models, loaded
        self.work = root / "data"

    def scene(self) -> Scene:
        digest = codec.digest([[name, file.digest(path)] for name, path in self.models.items()])
        evaluate = self.request.evaluate
        streams, found, calibration, parts, data_digest = (
            self._evaluated() if evaluate and self.request.data is None else self._given()
        )
        with self._baseline(streams) as worker:
            worker.ask("load")
            first_ns = int(worker.ask("first")["first_ns"])
            quick = min(worker.ask("burst", at=0, runs=3)["latency_ns"])
            if not evaluate:
                parts = self._limited(parts, quick)
                self._save_outputs(worker, parts)
            records = self._records(worker) if evaluate else None
        budget, rule = self._budget(parts, found, records)
        job = Job(
            model=", ".join(str(path) for path in self.request.models),
            model_digest=digest,
            data_digest=data_digest,
            budget=budget,
            budget_rule=rule,
            workload=self.request.workload,
            baseline=self.request.baseline,
            versions=versions(),
            machine=machine(),
        )
        made = {
            name: self._part(name, parts[name], budget, found, records)
            for name in ("search", "final")
        }
        self._check_budget(budget, made)
        facts = _joined(list(self.loaded.values()))
        self._header(job, facts, parts)
        return Scene(
            root=self.root,
            job=job,
            facts=facts,
            models=self.models,
            feeds=streams,
            materials=calibration,
            parts=made,
            evaluate=evaluate,
            base_ns=quick,
            timeout_s=min(300.0, max(20.0, self.request.seconds / 3, 40 * first_ns / 1e9)),
            memory_limit=self.request.memory_limit,
            verbose=self.request.verbose,
        )

    def _given(self) -> Any:
        """Feeds from the user's data, or made up."""
        if len(self.models) > 1:
            raise BadSettings(
                "--data cannot feed several models", fix="leave it out; --evaluate feeds them"
            )
        request, inputs = self.request, self.loaded[MAIN].inputs
        if request.data is None:
            found = synthetic.make(
                inputs, self.work, shapes=request.shapes or {}, ranges=request.ranges or {}
            )
            self.sink(Note("no data: made-up samples; only exact plans are tried", warning=True))
        else:
            found = feeds.load(request.data, inputs, self.work, labels=request.labels)
        own = None
        if request.calibration is not None:
            own = feeds.load(request.calibration, inputs, self.work / "calibration")
        divided = split.split(found, own)
        for text in (*found.notes, *divided.notes):
            self.sink(Note(text))
        material = Material(own or found, () if found.synthetic else divided.calibration)
        parts = {"search": divided.search, "final": divided.final}
        if request.whole:
            parts = {"search": tuple(range(found.count)), "final": (0,)}
        digest = codec.digest(
            [
                found.digests,
                codec.encode(found.labels and [str(x) for x in found.labels]),
                found.groups,
                own.digests if own else None,
                self._function_digest(),
            ]
        )
        return {MAIN: found.stream}, found, {MAIN: material}, parts, digest

    def _evaluated(self) -> Any:
        """Feeds recorded from the calls that the evaluate function makes on the baseline."""
        self.work.mkdir(parents=True, exist_ok=True)
        streams = {name: self.work / f"{name or 'model'}.stream" for name in self.models}
        with self._baseline({}) as worker:
            worker.ask("load")
            answer = worker.ask(
                "evaluate",
                function=self.request.evaluate,
                record={name: str(path.resolve()) for name, path in streams.items()},
                timeout_s=max(_LOAD_TIMEOUT_S, 2 * self.request.seconds),
            )
        count = len(answer["records"][0])
        if not count:
            raise BadData(
                f"{self.request.evaluate} returned no records", fix="return one record a sample"
            )
        for name, calls in answer["calls"].items():
            if not calls:
                raise BadData(
                    f"{self.request.evaluate} never ran model '{name or self.models[name].stem}'",
                    fix="call every model that is given",
                )
        materials = {
            name: Material(
                Feeds(path, len(Stream(path)), (), None, None, self.request.evaluate),
                _spread(len(Stream(path)), 64),
            )
            for name, path in streams.items()
        }
        cut = max(1, round(count * 0.6))
        cut = count if self.request.whole else cut
        parts = {"search": tuple(range(cut)), "final": tuple(range(cut, count)) or (0,)}
        digest = codec.digest([self._function_digest(), answer["records"]])
        return streams, None, materials, parts, digest

    def _baseline(self, streams: Mapping[str, Path]) -> Worker:
        job = WorkerJob(
            {name: path.resolve() for name, path in self.models.items()},
            self.request.baseline,
            {name: path.resolve() for name, path in streams.items()},
            worker_folder(self.root.resolve() / "workers", "setup"),
            self.request.workload.batch,
            verbose=self.request.verbose,
        )
        limit = self.request.memory_limit
        return _Loud(job, timeout_s=_LOAD_TIMEOUT_S, memory_limit=limit)

    def _limited(
        self, parts: Mapping[str, tuple[int, ...]], quick: int
    ) -> dict[str, tuple[int, ...]]:
        """Thin parts whose scoring would eat the search's time; a resumed run keeps its own."""
        header = read_header(self.root)
        if header is not None:
            return dict(header.parts)
        allowed = max(20, int(self.request.seconds * 1e9 / _SHARE / max(quick, 1)))
        made = {}
        for name, indices in parts.items():
            made[name] = tuple(indices[i] for i in _spread(len(indices), allowed))
            if len(made[name]) < len(indices):
                text = f"{name}: {len(made[name])} of {len(indices)} samples are scored, for time"
                self.sink(Note(text))
        return made

    def _save_outputs(self, worker: Worker, parts: Mapping[str, Sequence[int]]) -> None:
        for name, indices in parts.items():
            worker.ask(
                "score",
                indices=list(indices),
                metrics=[],
                save=str(self._expected(name).resolve()),
                timeout_s=max(_LOAD_TIMEOUT_S, self.request.seconds),
            )

    def _expected(self, part: str) -> Path:
        return self.work / f"expected-{part}.stream"

    def _records(self, worker: Worker) -> NDArray[np.float64]:
        answer = worker.ask(
            "evaluate",
            function=self.request.evaluate,
            timeout_s=max(_LOAD_TIMEOUT_S, self.request.seconds),
        )
        return np.asarray(answer["records"][0], np.float64)

    def _budget(
        self,
        parts: Mapping[str, Sequence[int]],
        found: Feeds | None,
        records: NDArray[np.float64] | None,
    ) -> tuple[Budget, str]:
        if self.request.evaluate:
            metric = ScoreMetric(path=self.request.evaluate)
            if self.request.budget is None:
                return Budget(
                    metric, -0.01, relative=True
                ), "--evaluate: within 0.01 of the baseline"
            given = Budget.parse(self.request.budget)
            if given.metric.name() == "score" or str(given.metric).startswith("function"):
                given = replace(given, metric=metric)
            if given.metric != metric:
                raise BadSettings(
                    f"budget '{self.request.budget}' does not judge what --evaluate returns",
                    fix="write score>=base-0.01",
                )
            return given, ""
        labels = None if found is None or found.labels is None else found.labels
        if self.request.budget is not None:
            budget = Budget.parse(self.request.budget)
            if budget.metric.needs_labels and labels is None:
                raise BadData(
                    f"budget '{budget}' needs labels and the data have none",
                    fix="put an array 'label' into the samples, or give --labels FILE",
                )
            return budget, ""
        stream = Stream(self._expected("search"))
        names = list(stream[0])
        outputs = {name: [stream[i][name] for i in range(min(64, len(stream)))] for name in names}
        some = [labels[i] for i in parts["search"][:64]] if labels is not None else None
        budget, rule = derive.derive(outputs, some)
        self.sink(Note(f"budget {budget} ({rule})"))
        return budget, rule

    def _part(
        self,
        name: str,
        indices: Sequence[int],
        budget: Budget,
        found: Feeds | None,
        records: NDArray[np.float64] | None,
    ) -> Part:
        if records is not None:
            return Part(name, tuple(indices), None, records[list(indices)])
        if found is None:
            raise AssertionError("without an evaluate function there are feeds")
        labels = None if found.labels is None else tuple(found.labels[i] for i in indices)
        groups = None if found.groups is None else tuple(found.groups[i] for i in indices)
        stream = Stream(self._expected(name))
        rows = [
            budget.metric.records([out], [out], None if labels is None else [labels[i]])[0]
            for i, out in enumerate(stream)
        ]
        return Part(
            name, tuple(indices), stream.path, np.asarray(rows, np.float64), labels, groups
        )

    def _check_budget(self, budget: Budget, parts: Mapping[str, Part]) -> None:
        for part in parts.values():
            base = budget.metric.aggregate(part.records)
            if not budget.admits(base, base):
                raise BadSettings(
                    f"the original itself scores {base:.4g} and misses the budget {budget}",
                    fix="loosen the budget, or make it relative: metric>=base-0.01",
                )

    def _header(self, job: Job, facts: Facts, parts: Mapping[str, Sequence[int]]) -> None:
        header = read_header(self.root)
        if header is None:
            models = {name: str(path.resolve()) for name, path in self.models.items()}
            kept = {name: tuple(indices) for name, indices in parts.items()}
            write_header(self.root, Header(job, facts, self.request.command, models, kept))
            return
        if changed := different(header.job, job):
            raise BadSettings(
                f"{self.root} holds the run of another job: {changed}",
                fix="choose another -o folder, or remove that one",
            )

    def _function_digest(self) -> str:
        """Digest the source of the user's functions: an edited one is another job."""
        texts = []
        for path in (self.request.evaluate, self.request.budget or ""):
            module = path.partition(":")[0].split(">")[0]
            with suppress(ImportError, ValueError):
                spec = importlib.util.find_spec(module) if module and ":" in path else None
                if spec and spec.origin:
                    texts.append(sha256(Path(spec.origin).read_bytes()).hexdigest())
        return " ".join([self.request.evaluate, *texts])


class _Loud(Worker):
    """A worker whose failure is the user's to mend: the baseline does not run."""

    def ask(self, do: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        try:
            return super().ask(do, timeout_s=timeout_s, **arguments)
        except WorkerFailed as error:
            raise BadData(
                f"the original does not run: {error.failure.reason}",
                fix=f"check model and data; to repeat: {error.failure.reproduce}",
            ) from None


def different(one: Job, two: Job) -> str:
    """Return what differs between two jobs in a few words, or an empty text."""
    pairs = {
        "model": (one.model_digest, two.model_digest),
        "data": (one.data_digest, two.data_digest),
        "budget": (str(one.budget), str(two.budget)),
        "workload": (one.workload, two.workload),
        "baseline": (one.baseline, two.baseline),
        "versions": (dict(one.versions), dict(two.versions)),
        "machine": (dict(one.machine), dict(two.machine)),
    }
    return ", ".join(
        f"its {name} is {a}, not {b}" if name in ("budget", "baseline") else f"another {name}"
        for name, (a, b) in pairs.items()
        if a != b
    )


def job_key(job: Job) -> str:
    """Digest everything a trial depends on beside its plan; the model's path does not count."""
    return codec.digest(replace(job, model="", budget_rule=""))


def _spread(count: int, limit: int) -> tuple[int, ...]:
    """Return at most `limit` indices spread over `count`."""
    taken = min(count, limit)
    return tuple(i * count // taken for i in range(taken)) if taken else ()


def _joined(found: Sequence[Facts]) -> Facts:
    """Sum the facts of models that are optimized together."""
    if len(found) == 1:
        return found[0]
    ops: dict[str, int] = {}
    precisions: dict[str, int] = {}
    for one in found:
        for op, count in one.ops.items():
            ops[op] = ops.get(op, 0) + count
        for dtype, size in one.precisions.items():
            precisions[dtype] = precisions.get(dtype, 0) + size
    flops = [one.flops for one in found]
    return replace(
        found[0],
        ops=ops,
        precisions=precisions,
        nodes=sum(one.nodes for one in found),
        parameters=sum(one.parameters for one in found),
        weight_bytes=sum(one.weight_bytes for one in found),
        opset=min(one.opset for one in found),
        subgraphs=sum(one.subgraphs for one in found),
        functions=sum(one.functions for one in found),
        flops=None if None in flops else sum(f for f in flops if f is not None),
    )
