"""The public verb: find the fastest version of a model within an accuracy budget, and prove it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.torch import Torch
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Note, Sink, silent
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse, parse_list
from ortune.core.step import Transform
from ortune.core.study import Study
from ortune.core.workload import Workload, read_workload
from ortune.experiment import golden
from ortune.experiment.context import Context
from ortune.experiment.ledger import locked, read_study
from ortune.experiment.prepare import prepare
from ortune.experiment.request import Request
from ortune.measurement.capabilities import capabilities, demand
from ortune.recipe.space import Space, Target
from ortune.search.loop import Aim, search
from ortune.search.padding import unpadded
from ortune.search.policy import Policy

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def optimize(
    model: str | Path | Sequence[str | Path],
    *,
    data: str | Path | Callable[[], Any] | None = None,
    labels: str | Path | None = None,
    calibration: str | Path | Callable[[], Any] | None = None,
    evaluate: str | None = None,
    budget: str | None = None,
    on: str = "auto",
    baseline: str | None = None,
    time: str | float = "3m",
    target_speedup: float | None = None,
    strict: bool = False,
    workload: str | Workload = "latency",
    batch: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    out: str | Path = "ortune-run",
    sink: Sink = silent,
    verbose: bool = False,
    memory_limit: int | None = None,
    ranges_from: str | Path | None = None,
    augment: str = "",
    rules: Sequence[str] = (),
    policy: str = "staged",
    command: str = "",
) -> Study:
    """Search for the fastest version of `model` that keeps its answers.

    Args:
        model: An ONNX file; several files are optimized together by an evaluate function.
        data: Folder, file, ``module:function`` or callable; see `ortune.data.feeds.load`.
        labels: File with one label a sample.
        calibration: Samples for calibration only; otherwise a part of `data` is taken.
        evaluate: ``pkg.module:function`` that scores a running model itself.
        budget: Such as ``top1>=base-0.01``; derived from the outputs when None.
        on: Backends by comma; fields that are written out are pinned. ``auto``: all that run here.
        baseline: Backend of the untouched model; ``cpu`` with the pinned threads when None.
        time: Seconds, or ``90s``, ``3m``, ``1h``.
        target_speedup: Stop at the first proved plan that is this many times as fast.
        strict: Accept proved accuracy only.
        workload: How it will be used, such as ``throughput``: the winner depends on it.
        batch: Samples stacked into one timed run; short for the workload's own field.
        shapes: Input name -> shape, for made-up samples.
        ranges: Input name -> (low, high), for made-up samples.
        out: The run's folder; a run of the same job is resumed.
        sink: Receives progress events.
        verbose: The runtime logs to stderr.
        memory_limit: Bytes a worker may take.
        ranges_from: File of an earlier calibration, which answers quantizers first.
        augment: Altered copies to calibrate on too, such as ``noise(db=30),flip``; never scored.
        rules: Transforms to apply too that the search would not try by itself, spelled: rules of
            your own (``FILE.py:NAME``) and those that are for asking.
        policy: In which order plans are tried, spelled.
        command: The command line to repeat in reports.

    Raises:
        OrtuneError: Model, data, budget or folder cannot be used.
    """
    began = monotonic()
    driven, tried_by = read_workload(workload, batch), parse(Policy, policy)
    models = (model,) if isinstance(model, (str, Path)) else tuple(model)
    own = tuple(parse(Transform, text) for text in rules)
    targets = [
        replace(target, splits=driven.splits(target.capabilities.effective_cpus), rules=own)
        for target in read_targets(on)
    ]
    request = Request(
        models=tuple(Path(path) for path in models),
        data=data,
        labels=labels,
        calibration=calibration,
        evaluate=evaluate or "",
        budget=budget,
        baseline=parse(Backend, baseline) if baseline else _baseline(targets),
        workload=driven,
        shapes=shapes or {},
        ranges=ranges or {},
        seconds=read_seconds(time),
        memory_limit=memory_limit,
        verbose=verbose,
        command=command,
        on=on.strip(),
        ranges_from=None if ranges_from is None else Path(ranges_from),
        augment=augment,
    )
    root = Path(out)
    fresh = not root.exists()
    make_folder(root)
    with locked(root):
        try:
            context = prepare(request, root, sink)
        except OrtuneError:
            if fresh:
                _remove(root)
            raise
        aim = Aim(request.seconds, began, target_speedup, strict, monotonic)
        exact = data is None and not evaluate
        search(context, partial(explore, context, targets, exact), tried_by, aim, sink)
    study = read_study(root)
    if study.finished != "interrupted":
        golden.write(study, context)
    else:
        sink(Note(f"the same command goes on from here: {root}"))
    return study


def explore(
    context: Context, targets: Sequence[Target], exact: bool, note: Callable[[str], None]
) -> Space:
    """Return the plans there are; where padding can be cut, those behind buckets too."""
    asked = any(isinstance(target.backend, Bucketed) for target in targets)
    buckets = None if exact or asked else unpadded(context, note)
    job = context.job
    return Space(context.facts, targets, job.workload, job.baseline, exact, buckets)


def read_targets(on: str) -> list[Target]:
    """Read ``--on``: backends by comma, or ``auto`` for all that run here.

    Raises:
        BackendMissing: One of them cannot run here.
        BadSettings: One of them does not run the model file, or has an unknown setting.
    """
    if on.strip() != "auto":
        found = parse_list(Backend, on)
        if own := next((backend for backend, _ in found if isinstance(backend, Torch)), None):
            raise BadSettings(
                f"{own} runs a module of its own: no recipe for the file changes it",
                fix="give it by --baseline, or compare by `ortune bench --on`",
            )
        return [Target(backend, demand(backend), given) for backend, given in found]
    every = [catalog.load(Backend, name) for name in catalog.names(Backend)]
    made = [cls() for cls in every if cls.automatic]
    offered = [(backend, capabilities(backend)) for backend in made]
    return [Target(backend, found) for backend, found in offered if found.missing is None]


def read_seconds(text: str | float) -> float:
    """Read a duration such as 90, ``90s``, ``3m`` or ``1h``.

    Raises:
        BadSettings: It is not one, or not positive.
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([smh]?)\s*", str(text))
    if match is None or float(match[1]) <= 0:
        raise BadSettings(f"'{text}' is not a duration", fix="write 90s, 3m or 1h")
    return float(match[1]) * _UNITS[match[2]]


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


def _remove(root: Path) -> None:
    import shutil

    shutil.rmtree(root, ignore_errors=True)
