"""Run a bundle's golden samples and its benchmark again in one environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ortune.analysis.benchmark.interleave import Contestant, TimedRow, contest
from ortune.analysis.benchmark.ratios import Ratios
from ortune.bundle.recheck.result import RecheckRow, Replayed
from ortune.bundle.recheck.unpacked import UnpackedPlan
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.errors import OrtuneError
from ortune.core.event import Sink, silent
from ortune.core.trial import Interval
from ortune.data.stream import Stream
from ortune.engine.golden import TOLERANCE_DB, difference, snr_db
from ortune.measurement.capabilities import demand
from ortune.measurement.machine.energy import energy
from ortune.measurement.outputs import outputs
from ortune.measurement.process import WorkerFailed, lone
from ortune.measurement.timing import stats

SLOWER = 0.05
"""How much slower than in this Python's own environment is a change, as for `compare`."""


@dataclass(frozen=True)
class Retimed:
    """What was timed in one environment; see `RecheckRow`."""

    ratio: Interval | None = None
    beside: Interval | None = None


def why_not_timed(plan: UnpackedPlan) -> str:
    """Say why a bundle's benchmark cannot be replayed; empty where it can."""
    if len(plan.models) > 1:
        return "a bundle of several models does not say how often each is called"
    if plan.baseline is None:
        return "the original ran on code of its own, which a bundle does not bring"
    return ""


def replay(
    plan: UnpackedPlan, environment: str, root: Path, seconds: float, sink: Sink = silent
) -> RecheckRow:
    """Compare answers, and time plan and original, in one environment.

    Whatever does not run there is a result.

    Args:
        root: Folder for what workers write.
        seconds: Time for timing; 0 does not time.
    """
    runtime = environment
    try:
        offered = demand(plan.backend, environment)
        runtime = _runtime(plan, offered)
        answers = _answers(plan, environment, root)
        found = _timed(plan, environment, root, seconds, sink) if seconds else Retimed()
    except WorkerFailed as error:
        reason = error.failure.reason
    except OrtuneError as error:
        reason = f"{error.what} ({error.fix})"
    else:
        differs = difference(plan.job.machine, _then(plan), offered.machine, offered.versions)
        verdict, why = judged(answers, found, plan.predicted)
        return RecheckRow(
            environment, runtime, verdict, answers, found.ratio, found.beside, why, differs
        )
    return RecheckRow(environment, runtime, Replayed.FAILED, why=reason)


def judged(answers_db: float, found: Retimed, predicted: Interval | None) -> tuple[Replayed, str]:
    """Say how answers and times stand to the packed ones, and why in a line.

    Slower is what lies above the predicted interval with its own interval, so that noise alone is
    rarely called a change; or what is slower than beside it by over 5 % and beyond the noise.
    """
    if not answers_db >= TOLERANCE_DB:
        return Replayed.CHANGED, (
            f"an answer is {answers_db:.0f} dB from the packed one; {TOLERANCE_DB:.0f} are needed"
        )
    ratio, beside = found.ratio, found.beside
    if beside is not None and beside.value > 1 + SLOWER and beside.low > 1:
        return Replayed.SLOWER, f"it takes {beside} times as long as with the runtime here"
    if ratio is None or predicted is None:
        return Replayed.UNTIMED, ""
    foreseen = f"[{predicted.low:.3f}, {predicted.high:.3f}] was predicted"
    if ratio.low > predicted.high:
        return Replayed.SLOWER, f"it takes {ratio} of the original's time; {foreseen}"
    if ratio.value > predicted.high:
        return Replayed.UNCLEAR, (
            f"it takes {ratio} of the original's time; {foreseen}, which is inside the noise"
        )
    return Replayed.SAME, ""


def _then(plan: UnpackedPlan) -> dict[str, str]:
    """Return the versions that the plan was measured with; OpenVINO's where it runs on that."""
    found = dict(plan.job.versions)
    if "openvino" not in str(plan.backend):
        found.pop("onnxruntime-ep-openvino", None)
    return found


def _runtime(plan: UnpackedPlan, offered: Capabilities) -> str:
    name = plan.backend.name() if plan.backend.name() in offered.versions else "onnxruntime"
    return f"{name} {offered.versions.get(name, 'of unknown version')}"


def _answers(plan: UnpackedPlan, environment: str, root: Path) -> float:
    """Return the least `snr_db` of all golden samples.

    Raises:
        WorkerFailed: A model does not run there.
    """
    worst = float("inf")
    for index, (name, (inputs, expected)) in enumerate(plan.golden.items()):
        job = lone(
            plan.models[name], plan.backend, inputs, root, "golden", environment=environment
        )
        wanted = Stream(expected)
        found = outputs(job, range(len(wanted)), root / f"{index}.{environment}.stream")
        pairs = zip(wanted, found, strict=True)
        worst = min([worst, *(snr_db(one, other) for one, other in pairs)])
    return worst


def _timed(
    plan: UnpackedPlan, environment: str, root: Path, seconds: float, sink: Sink
) -> Retimed:
    """Time original and plan there in turns, and the plan here beside them.

    Raises:
        BadModel: The original does not run there.
    """
    (name, model), baseline = next(iter(plan.models.items())), plan.baseline
    assert baseline is not None, "asked after why_not_timed"
    driven, inputs = plan.job.workload, plan.golden[name][0]
    sides = [
        Contestant(plan.originals[name], baseline, driven, environment=environment),
        Contestant(model, plan.backend, driven, environment=environment),
    ]
    if environment != HERE:
        sides.append(Contestant(model, plan.backend, driven))
    rows = [TimedRow(one, inputs) for one in sides]
    contest([rows], root, seconds, energy(), stats.PAIRS, sink)
    if rows[1].error:
        raise OrtuneError(rows[1].error, fix="run `ortune bench` on its model")
    stand = Ratios([rows])
    ratio = stand.between(rows[1], rows[0])
    alone = len(rows) < 3 or rows[2].error
    return Retimed(ratio, None if alone else stand.between(rows[1], rows[2]))
