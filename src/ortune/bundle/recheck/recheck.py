"""Is a bundle as it was packed, here, or with which release of the runtime is it no more?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.bundle.recheck.replay import replay, why_not_timed
from ortune.bundle.recheck.request import Recheck
from ortune.bundle.recheck.result import RecheckResult, RecheckRow, Replayed
from ortune.bundle.recheck.unpacked import unpacked
from ortune.core.event import Note, Sink
from ortune.engine.golden import TOLERANCE_DB
from ortune.measurement.environment import interpreter
from ortune.measurement.environments.installed import ensured
from ortune.measurement.environments.releases import Release, chosen


def run(asked: Recheck) -> RecheckResult:
    """Replay a bundle in every environment that was asked for."""
    releases = chosen(asked.runtime) if asked.runtime else ()
    path = Path(asked.bundle)
    with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        plan = unpacked(
            path,
            root / "bundle",
            key=asked.key,
            custom_ops=asked.allow_custom_ops,
            require_signature=asked.require_signature,
        )
        why_not = why_not_timed(plan) if asked.timed else "not asked for"
        replays = []
        for place in _places(asked.environment, releases, asked.sink):
            asked.sink(Note(f"replaying {path.name} in environment {place}"))
            seconds = 0.0 if why_not else asked.time
            replays.append(replay(plan, place, root, seconds, asked.sink))
    good = all(one.verdict.good for one in replays)
    return RecheckResult(
        bundle=str(path),
        plan=str(plan.trial.plan),
        key=plan.trial.key,
        backend=str(plan.backend),
        packed=plan.packed,
        predicted=plan.predicted,
        tolerance_db=TOLERANCE_DB,
        replays=tuple(replays),
        changes=changes(replays),
        good=good,
        reason=_reason(path.name, replays),
        timed_why_not=why_not,
    )


def changes(replays: Sequence[RecheckRow]) -> tuple[str, ...]:
    """Return the runtimes with which the verdict is another than with the one before.

    Before the first it is taken to be as packed. What is perhaps slower is no change.
    """
    found, before = [], Replayed.SAME
    for one in replays:
        verdict = Replayed.SAME if one.verdict.good else one.verdict
        if verdict is not before:
            found.append(f"{one.runtime}: {one.verdict}")
        before = verdict
    return tuple(found)


def _places(environment: str, releases: Sequence[Release], sink: Sink) -> list[str]:
    """Return the environments, added where they are missing: all before anything is timed."""
    if not releases:
        interpreter(environment)
        return [environment]
    return [ensured(one, sink).name for one in releases]


def _reason(name: str, replays: Sequence[RecheckRow]) -> str:
    """Say what changed first, or that nothing did."""
    changed = next((one for one in replays if not one.verdict.good), None)
    if changed is None:
        told = dict.fromkeys(str(one.verdict) for one in replays)
        return f"{name}: {', '.join(told)}"
    oldest = len(replays) > 1 and changed is replays[0]
    already = ", the oldest that was tried, already" if oldest else ""
    differs = f" ({changed.differs})" if changed.differs else ""
    return f"{name}: {changed.verdict} with {changed.runtime}{already}: {changed.why}{differs}"
