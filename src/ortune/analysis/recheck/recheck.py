"""Is a bundle as it was packed, here, or with which release of the runtime is it no more?"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortune.analysis.benchmark.interleave import Contestant, Ratios, TimedRow, run_contest
from ortune.analysis.recheck.request import Recheck
from ortune.bundle.engine import consent
from ortune.bundle.engine.archive import verify_signature
from ortune.bundle.engine.golden import TOLERANCE_DB, explain_difference, snr_db
from ortune.bundle.engine.manifest import Manifest
from ortune.bundle.read import read_bundle
from ortune.bundle.target import unpack_bundle
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import (
    BadData,
    BadModel,
    BadSettings,
    OrtuneError,
    shorten_text,
    summarize_error,
)
from ortune.core.event import Note, Sink, ignore_event
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.core.result import TableResult
from ortune.core.study import Job
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.trial import Interval, Trial
from ortune.data.stream import Stream
from ortune.measurement.environment import find_interpreter
from ortune.measurement.environments.installed import ensure_environment
from ortune.measurement.environments.releases import select_releases
from ortune.measurement.machine.counters import find_energy_counters
from ortune.measurement.process import (
    WorkerFailed,
    compute_outputs,
    require_backend,
    single_model_job,
)
from ortune.measurement.timing import stats


class ReplayVerdict(enum.StrEnum):
    """How a bundle stands to what was packed."""

    SAME = "as packed"
    UNTIMED = "answers as packed"
    UNCLEAR = "perhaps slower"
    SLOWER = "slower"
    CHANGED = "answers changed"
    FAILED = "does not run"

    @property
    def good(self) -> bool:
        """Whether nothing is known to have changed."""
        return self in (ReplayVerdict.SAME, ReplayVerdict.UNTIMED, ReplayVerdict.UNCLEAR)


@dataclass(frozen=True)
class RecheckRow:
    """A bundle run again in one environment."""

    environment: str
    runtime: str  # the release of what runs it there, such as ``onnxruntime 1.31.1``
    verdict: ReplayVerdict
    # The worst answer's distance from the packed one, as a signal-to-noise ratio in dB; infinite
    # where they are equal, None where it did not run.
    answers_db: float | None = None
    # The plan's time over the original's, both there; None where it was not timed.
    ratio: Interval | None = None
    # The plan's time there over its time in this Python's own environment, timed in turns; None
    # where that is the same, or does not run.
    beside: Interval | None = None
    why: str = ""
    # What is not as on the machine that the bundle was packed on; empty if nothing.
    differs: str = ""


@dataclass(frozen=True, repr=False)
class RecheckResult(TableResult):
    """A bundle run again, in one environment or in several.

    Attributes:
        plan: The packed plan, as a person reads it.
        packed: The plan's time over the original's when it was packed, at 99 %.
        predicted: Where a new measurement of that falls with 95 %, as it was predicted then.
        tolerance_db: The least distance in dB that answers may have.
        replays: One an environment, oldest release first.
        changes: Runtimes with which something changed, or came back, in that order.
        good: Nothing is known to have changed anywhere.
        reason: What changed first, or that nothing did.
        timed_why_not: Why it was not timed; empty where it was.
    """

    bundle: str
    plan: str
    key: str
    backend: str
    packed: Interval | None
    predicted: Interval | None
    tolerance_db: float
    replays: tuple[RecheckRow, ...]
    changes: tuple[str, ...]
    good: bool
    reason: str
    timed_why_not: str = ""

    table = "replays"

    def summary(self) -> Mapping[str, object]:
        first = self.replays[0]
        return {
            "bundle": self.bundle,
            "plan": self.plan,
            "good": self.good,
            "reason": self.reason,
            "answers dB": first.answers_db,
            "ratio": first.ratio,
            "packed": self.packed,
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        return [
            {
                "runtime": row.runtime,
                "environment": row.environment,
                "verdict": str(row.verdict),
                "answers_db": row.answers_db,
                "ratio": row.ratio and row.ratio.value,
                "beside": row.beside and row.beside.value,
                "why": row.why,
            }
            for row in self.replays
        ]


def run(request: Recheck) -> RecheckResult:
    """Replay a bundle in every environment that was asked for."""
    releases = select_releases(request.runtime) if request.runtime else ()
    path = Path(request.bundle)
    with open_temporary_folder() as root:
        plan = unpack_plan(
            path,
            root / "bundle",
            key=request.plan,
            custom_ops=request.allow_custom_ops,
            require_signature=request.require_signature,
        )
        why_not = ""
        if not request.timed:
            why_not = "not asked for"
        elif len(plan.models) > 1:
            why_not = "a bundle of several models does not say how often each is called"
        elif plan.baseline is None:
            why_not = "the original ran on code of its own, which a bundle does not bring"
        replays = []
        # All are added where they are missing before anything is timed.
        places = [ensure_environment(row, request.sink).name for row in releases]
        if not places:
            find_interpreter(request.environment)
            places = [request.environment]
        for place in places:
            request.sink(Note(f"replaying {path.name} in environment {place}"))
            seconds = 0.0 if why_not else request.time
            replays.append(replay_plan(plan, place, root, seconds, request.sink))
    changed = next((row for row in replays if not row.verdict.good), None)
    if changed is None:
        reason = ", ".join(dict.fromkeys(str(row.verdict) for row in replays))
    else:
        oldest = len(replays) > 1 and changed is replays[0]
        already = " (the oldest release tried)" if oldest else ""
        differs = f" ({changed.differs})" if changed.differs else ""
        reason = f"{changed.verdict} with {changed.runtime}{already}: {changed.why}{differs}"
    return RecheckResult(
        bundle=str(path),
        plan=str(plan.trial.plan),
        key=plan.trial.key,
        backend=str(plan.backend),
        packed=plan.trial.ratio,
        predicted=plan.trial.predicted,
        tolerance_db=TOLERANCE_DB,
        replays=tuple(replays),
        changes=list_verdict_changes(replays),
        good=changed is None,
        reason=f"{path.name}: {reason}",
        timed_why_not=why_not,
    )


def list_verdict_changes(replays: Sequence[RecheckRow]) -> tuple[str, ...]:
    """Return the runtimes with which the verdict is another than with the one before.

    Before the first it is taken to be as packed. What is perhaps slower is no change.
    """
    lines, before = [], ReplayVerdict.SAME
    for row in replays:
        verdict = ReplayVerdict.SAME if row.verdict.good else row.verdict
        if verdict is not before:
            lines.append(f"{row.runtime}: {row.verdict}")
        before = verdict
    return tuple(lines)


SLOWER = 0.05
"""How much slower than in this Python's own environment is a change, as for `compare`."""


@dataclass(frozen=True)
class ReplayTiming:
    """What was timed in one environment; see `RecheckRow`."""

    ratio: Interval | None = None
    beside: Interval | None = None


def replay_plan(
    plan: UnpackedPlan, environment: str, root: Path, seconds: float, sink: Sink = ignore_event
) -> RecheckRow:
    """Compare answers, and time plan and original, in one environment.

    Whatever does not run there is a result.

    Args:
        seconds: Time for timing; 0 does not time.
    """
    runtime = environment
    try:
        offered = require_backend(plan.backend, environment)
        name = plan.backend.name() if plan.backend.name() in offered.versions else "onnxruntime"
        runtime = f"{name} {offered.versions.get(name, 'of unknown version')}"
        answers = _compare_answers(plan, environment, root)
        retimed = _time_plan(plan, environment, root, seconds, sink) if seconds else ReplayTiming()
    except WorkerFailed as error:
        reason = error.failure.reason
    except OrtuneError as error:
        reason = f"{error.what} ({error.fix})"
    else:
        then = dict(plan.job.versions)
        if "openvino" not in str(plan.backend):
            then.pop("onnxruntime-ep-openvino", None)
        differs = explain_difference(plan.job.machine, then, offered.machine, offered.versions)
        verdict, why = judge_times(answers, retimed, plan.trial.predicted)
        return RecheckRow(
            environment, runtime, verdict, answers, retimed.ratio, retimed.beside, why, differs
        )
    return RecheckRow(environment, runtime, ReplayVerdict.FAILED, why=reason)


def judge_times(
    answers_db: float, retimed: ReplayTiming, predicted: Interval | None
) -> tuple[ReplayVerdict, str]:
    """Say how answers and times stand to the packed ones, and why in a line.

    Slower is what lies above the predicted interval with its own interval, so that noise alone is
    rarely called a change; or what is slower than beside it by over 5 % and beyond the noise.
    """
    if not answers_db >= TOLERANCE_DB:
        return ReplayVerdict.CHANGED, (
            f"outputs differ from the packed ones: SNR {answers_db:.0f} dB, at least "
            f"{TOLERANCE_DB:.0f} dB needed"
        )
    ratio, beside = retimed.ratio, retimed.beside
    if beside is not None and beside.value > 1 + SLOWER and beside.low > 1:
        return ReplayVerdict.SLOWER, f"it takes {beside} times as long as with the runtime here"
    if ratio is None or predicted is None:
        return ReplayVerdict.UNTIMED, ""
    if not ratio.is_bounded:
        return ReplayVerdict.UNTIMED, (
            "CPU was busy: too many timed runs had to wait; close other programs and run recheck "
            "again"
        )
    foreseen = f"predicted was [{predicted.low:.3f}, {predicted.high:.3f}]"
    if ratio.low > predicted.high:
        return ReplayVerdict.SLOWER, f"it takes {ratio} of the original's time; {foreseen}"
    if ratio.value > predicted.high:
        return ReplayVerdict.UNCLEAR, (
            f"it takes {ratio} of the original's time; {foreseen}; the difference is within noise"
        )
    return ReplayVerdict.SAME, ""


def _compare_answers(plan: UnpackedPlan, environment: str, root: Path) -> float:
    """Return the least `snr_db` of all golden samples."""
    worst = float("inf")
    for index, (name, (inputs, expected)) in enumerate(plan.golden.items()):
        job = single_model_job(
            plan.models[name], plan.backend, inputs, root, "golden", environment=environment
        )
        reference = Stream(expected)
        actual = compute_outputs(
            job, range(len(reference)), root / f"{index}.{environment}.stream"
        )
        pairs = zip(reference, actual, strict=True)
        worst = min([worst, *(snr_db(packed, now) for packed, now in pairs)])
    return worst


def _time_plan(
    plan: UnpackedPlan, environment: str, root: Path, seconds: float, sink: Sink
) -> ReplayTiming:
    """Time original and plan there in turns, and the plan here beside them."""
    (name, model), baseline = next(iter(plan.models.items())), plan.baseline
    assert baseline is not None, "`run` says why it is not timed"
    driven, inputs = plan.job.workload, plan.golden[name][0]
    sides = [
        Contestant(plan.originals[name], baseline, driven, environment=environment),
        Contestant(model, plan.backend, driven, environment=environment),
    ]
    if environment != HERE:
        sides.append(Contestant(model, plan.backend, driven))
    rows = [TimedRow(side, inputs) for side in sides]
    run_contest([rows], root, seconds, find_energy_counters(), stats.PAIRS, sink)
    if rows[1].error:
        raise OrtuneError(rows[1].error, fix="run `ortune bench` on its model")
    stand = Ratios([rows])
    ratio = stand.estimate_ratio(rows[1], rows[0])
    alone = len(rows) < 3 or rows[2].error
    return ReplayTiming(ratio, None if alone else stand.estimate_ratio(rows[1], rows[2]))


@dataclass(frozen=True)
class UnpackedPlan:
    """A plan and the original below a folder; keys are the names of the models."""

    trial: Trial  # what was measured of the plan; the final trial where there is one
    job: Job  # what was measured, on which machine, with which versions
    backend: Backend  # the plan's, with the libraries where they were unpacked
    baseline: Backend | None  # the original's; None where a bundle cannot bring what it ran on
    models: Mapping[str, Path]
    originals: Mapping[str, Path]
    golden: Mapping[str, tuple[Path, Path]]  # stream files of inputs and answers


def unpack_plan(
    path: Path,
    folder: Path,
    *,
    key: str,
    custom_ops: bool,
    require_signature: str | Path | None = None,
) -> UnpackedPlan:
    """Check a bundle and unpack one plan of it, with the original, into a folder.

    Threads above the CPUs at hand are lowered.

    Args:
        key: Start of the key of the plan's trial; the first plan if empty.
        custom_ops: Whether libraries that it brings may run.
        require_signature: Public key of who must have signed it.

    Raises:
        BadModel: It is no bundle, was changed, holds what a bundle may not, or no golden samples.
        BadSettings: It holds no such plan, or runs code that is not allowed.
    """
    if require_signature is not None:
        verify_signature(path, require_signature)
    bundle = read_bundle(path)
    evidence = bundle.evidence.trials
    if not evidence:
        raise OrtuneError(f"{bundle.path} holds no evidence of its plan", fix="pack the run again")
    # Bundles of format 1 do not name the key.
    keys = [candidate.packed.key or evidence[-1].key for candidate in bundle.plans]
    position = next(
        (place for place, candidate in enumerate(keys) if candidate.startswith(key)), None
    )
    if position is None:
        raise BadSettings(
            f"{bundle.path} holds no plan '{shorten_text(key, 40)}'",
            fix=f"use one of: {', '.join(candidate[:8] for candidate in keys)}",
        )
    trial = [candidate for candidate in evidence if candidate.key == keys[position]][-1]
    plan = bundle.plans[position]
    manifest = unpack_bundle(path, folder, plan.packed, custom_ops=custom_ops)
    golden = {
        name: (folder / pair.inputs, folder / pair.outputs)
        for name, pair in plan.packed.golden.items()
    }
    # Refuse golden samples that cannot be read, or of which one has no answer.
    why = "" if golden else "it has none"
    for inputs, answers in golden.values():
        try:
            if not 0 < len(Stream(inputs)) == len(Stream(answers)):
                why = "not every sample has an answer"
        except BadData as error:
            why = summarize_error(error)
    if why:
        raise BadModel(
            f"{path.name}: its golden samples cannot be used: {why}", fix="pack the run again"
        )
    backend = consent.place_libraries(plan.backend, plan.packed, manifest, folder)
    return UnpackedPlan(
        trial,
        bundle.evidence.job,
        stored.limit_threads(backend, effective_cpus())[0],
        _read_baseline(bundle.evidence.job.baseline, manifest, folder),
        {name: folder / member for name, member in plan.packed.models.items()},
        {name: folder / member for name, member in manifest.fallback.items()},
        golden,
    )


def _read_baseline(stored_baseline: Backend, manifest: Manifest, folder: Path) -> Backend | None:
    """Return what the original ran on, none of it code that only the evidence names."""
    backend, _ = stored.limit_threads(stored_baseline, effective_cpus())
    libraries = backend.custom_ops
    if set(stored.list_code_names(codec.encode(backend))) - set(libraries):
        return None
    if not libraries:
        return backend
    brought = consent.locate_libraries(manifest.custom_ops, manifest, folder)
    return replace(backend, custom_ops=brought)  # type: ignore[call-arg]
