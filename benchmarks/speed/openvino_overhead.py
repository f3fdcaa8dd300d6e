"""What OpenVINO through ortune costs beyond OpenVINO's own Python API, as JSON.

    python -m benchmarks.speed.openvino_overhead [model ...]

Own side: `Core.compile_model` with the same properties, and one infer request. ortune's side:
`ortune.load(model, on="openvino(threads=1)")` and the engine's call. Each compiles for itself: a
model's place in memory is luck, so that there are several rounds, each with both compiled anew and
in turns first. Within a round the sides take turns A B B A on the same sample.

`as documented`: `request.infer(inputs)`, which copies inputs and outputs. `nothing copied`: the
same with inputs and outputs shared, which the next call writes over: ortune copies outputs, since
its callers keep them.

A row has the median nanoseconds of each side and the ratio of the two with its 99 % interval, of
rounds and their turns drawn again. The upper end must be within 3 %.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.real import engines

from benchmarks.result_files import result_file, write_results
from benchmarks.speed.engine_overhead import Feeds, Row, timed, turn
from ortune.bundle.engine.load import load_engine
from ortune.measurement.machine.machine import describe_machine

MODELS = ("efficientnet-lite0", "minilm")
PROPERTIES = {
    "INFERENCE_NUM_THREADS": "1",
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
}
PLAN = "openvino(threads=1)"
FORMS = {"as documented": False, "nothing copied": True}
"""How the own API is called -> whether inputs and outputs are shared."""
ROUNDS, SECONDS, DRAWS = 12, 4.0, 4000
LIMIT = 1.03
Pairs = list[tuple[float, float]]


def main(*wanted: str, rounds: int = ROUNDS, seconds: float = SECONDS) -> int:
    """Measure and print one JSON object; exit 1 when a limit is missed."""
    rows = []
    for name in wanted or MODELS:
        if reason := engines.absent(name):
            print(f"{name}: {reason}", file=sys.stderr)
            return 1
        path, samples = engines.model(name)
        for form, shared in FORMS.items():
            turns = [taken(path, samples[0], n, shared, seconds) for n in range(rounds)]
            row = {"model": name, "own API": form, **summary(turns)}
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    packages = {name: version(name) for name in ("ortune", "onnxruntime", "openvino", "numpy")}
    result = {
        "benchmark": "openvino overhead",
        "machine": describe_machine(),
        "plan": PLAN,
        "rows": rows,
    }
    about = {"versions": packages, "load average": os.getloadavg()}
    write_results(result_file("openvino_overhead"), result | about)
    return 0 if all(row["within"] for row in rows) else 1


def taken(path: Path, feeds: Feeds, number: int, shared: bool, seconds: float) -> Pairs:
    """Compile on both sides and return nanoseconds a run of each, own API first, turn by turn."""
    if number % 2:
        engine = load_engine(path, on=PLAN)
        own = request(path, feeds, shared)
    else:
        own = request(path, feeds, shared)
        engine = load_engine(path, on=PLAN)
    with engine:
        agree(own(), engine(**feeds))
        one = min(median(timed(own, 3)) for _ in range(3))
        runs = max(2, int(20e6 / one / 4))
        count = max(4, int(seconds * 1e9 / (4 * one * runs)))

        def ours(runs: int) -> list[int]:
            return timed(lambda: engine(**feeds), runs)

        turn(own, ours, runs)  # both sides warm
        return [turn(own, ours, runs) for _ in range(count)]


def request(path: Path, feeds: Feeds, shared: bool) -> Callable[[], Any]:
    """Return a call of OpenVINO's own API, compiled with the properties of the plan."""
    import openvino

    made = openvino.Core().compile_model(str(path), "CPU", PROPERTIES).create_infer_request()
    return lambda: made.infer(feeds, share_inputs=shared, share_outputs=shared)


def agree(own: Any, ours: Feeds) -> None:
    """Refuse to compare sides that answer differently: they would compute other things."""
    for port, array in own.items():
        np.testing.assert_array_equal(array, ours[port.get_any_name()])


def summary(rounds: Sequence[Pairs]) -> Row:
    """Summarize rounds of turns: medians, and the ratio with its interval.

    Args:
        rounds: Of each its turns; nanoseconds of the own API, then through ortune.
    """
    ratios = [np.array([two / one for one, two in turns]) for turns in rounds]
    rng = np.random.default_rng(0)
    draws = [
        np.mean([np.median(rng.choice(ratios[n], len(ratios[n]))) for n in drawn])
        for drawn in rng.integers(0, len(ratios), (DRAWS, len(ratios)))
    ]
    low, high = np.percentile(draws, (0.5, 99.5))
    value = float(np.mean([np.median(one) for one in ratios]))
    every = np.array([pair for turns in rounds for pair in turns])
    own, ours = (round(float(ns)) for ns in np.median(every, axis=0))
    ratio = {"value": value, "low": float(low), "high": float(high)}
    return {
        "own_ns": own,
        "ortune_ns": ours,
        "ratio": {name: round(one, 4) for name, one in ratio.items()},
        "rounds": len(rounds),
        "turns": len(every),
        "within": bool(high <= LIMIT),
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
