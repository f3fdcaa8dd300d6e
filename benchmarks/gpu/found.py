"""A search beside the best by hand: onnxruntime, torch and TensorRT-RTX as users call them.

    python -m benchmarks.gpu resnet50

A call takes NumPy arrays and gives NumPy arrays, copies in both directions included. Contestants
take turns of short bursts in one process; ratios are of bursts of the same round. Whoever loses
more than the budget stands in the table and is not the best.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ortune as ot
from benchmarks.gpu import by_hand
from benchmarks.gpu.levels import compute_snr
from benchmarks.gpu.steps import Target
from benchmarks.speed import shapes
from ortune.core.plugins import codec

LEAST_DB = 30.0
"""The budget of all shapes, as `benchmarks/speed/shapes.json` has it."""
FOUND = "ortune"
_ROUNDS, _BURST_S, _COMPARED = 40, 0.012, 4
_RESAMPLES, _CONFIDENCE = 2000, (0.5, 99.5)


def measure(name: str, target: Target, seconds: float) -> Iterator[tuple[str, Any]]:
    """Yield what a search found for a shape, then the race.

    Args:
        seconds: For the search.
    """
    folder = shapes.write(name)
    began = time.monotonic()
    study = ot.optimize(
        folder / "model.onnx",
        data=str(folder / "data"),
        calibration=str(folder / "calibration"),
        budget=f"snr(share=0)>={LEAST_DB:.0f}",
        on="auto",
        time=seconds,
        out=target.work / "run",
        sink=lambda event: print(f"{time.monotonic() - began:.1f} s: {event}", flush=True),
    )
    told = {key: value for key, value in study.summary().items() if key not in ("model", "run")}
    yield "search", {"seconds": time.monotonic() - began} | told
    yield "trials", [describe_trial(study, trial) for trial in (*study.trials, *study.final)]
    bundle = target.work / "found.ortune"
    ot.pack(study, bundle)
    feeds = [dict(np.load(path)) for path in sorted((folder / "data").glob("*.npz"))]
    with ot.load(folder / "model.onnx", on="cpu") as engine:
        reference = [list(engine(**sample).values()) for sample in feeds[:_COMPARED]]
    with ot.load(bundle) as engine:
        yield "winner", {"placement": dict(engine.placement()), "engine": repr(engine)}
        entries: dict[str, by_hand.Call] = {FOUND: lambda feed: list(engine(**feed).values())}
        errors: dict[str, str] = {}
        for label, make in by_hand.list_makers(name, folder, target):
            try:
                entries[label] = make()
                entries[label](feeds[0])
            except Exception as error:
                errors[label] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                entries.pop(label, None)
            print(label, errors.get(label, "is ready"), flush=True)
        yield "errors", errors
        snr = {
            label: compute_snr(
                [array for outputs in reference for array in outputs],
                [array for feed in feeds[:_COMPARED] for array in call(feed)],
            )
            for label, call in entries.items()
        }
        yield "snr_db", snr
        times = race(entries, feeds)
        yield "race", judge_race(times, snr)


def describe_trial(study: ot.Study, trial: ot.Trial) -> dict[str, Any]:
    """Return what is kept of a trial: its plan, and what became of it."""
    return {
        "plan": study.label(trial.plan),
        "spelling": str(trial.plan),
        "part": trial.part,
        "status": str(trial.status),
        "ratio": codec.encode(trial.ratio),
        "score": trial.score.value if trial.score else None,
        "seconds": trial.seconds,
        "why": trial.error or trial.why,
    }


def race(
    entries: Mapping[str, by_hand.Call], feeds: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, list[float]]:
    """Return the mean time of a call in each round, in seconds, for each contestant."""
    calls = {}
    for label, call in entries.items():
        for feed in feeds[:5]:
            call(feed)
        began = time.perf_counter()
        for feed in feeds[:5]:
            call(feed)
        calls[label] = max(2, int(_BURST_S * 5 / (time.perf_counter() - began)))
    rng, times = np.random.default_rng(0), {label: [0.0] * _ROUNDS for label in entries}
    labels = list(entries)
    for turn in range(_ROUNDS):
        for place in rng.permutation(len(labels)):
            label = labels[place]
            call, count = entries[label], calls[label]
            call(feeds[turn % len(feeds)])
            began = time.perf_counter()
            for index in range(count):
                call(feeds[(turn + index) % len(feeds)])
            times[label][turn] = (time.perf_counter() - began) / count
    return times


def judge_race(
    times: Mapping[str, Sequence[float]], snr: Mapping[str, float | None]
) -> dict[str, Any]:
    """Return medians, and the ratio of what was found to each other contestant with its error.

    The interval is the 99 % bootstrap's over rounds, of the mean log-ratio of a round.
    """
    own = np.log(times[FOUND])
    rows: dict[str, dict[str, Any]] = {}
    for label, values in times.items():
        logs = own - np.log(values)
        holds = (snr[label] or -np.inf) >= LEAST_DB
        draws = np.random.default_rng(0).choice(logs, (_RESAMPLES, len(logs))).mean(1)
        low, high = np.exp(np.percentile(draws, _CONFIDENCE))
        rows[label] = {
            "median_ms": 1e3 * float(np.median(values)),
            "snr_db": snr[label],
            "holds": bool(holds),
            "found_over_it": [float(np.exp(logs.mean())), float(low), float(high)],
        }
    rivals = {k: row for k, row in rows.items() if k != FOUND and row["holds"]}
    best = min(rivals, key=lambda k: rivals[k]["median_ms"]) if rivals else ""
    return {
        "rows": rows,
        "best_by_hand": best,
        "found_over_best": rows[best]["found_over_it"] if best else None,
    }
