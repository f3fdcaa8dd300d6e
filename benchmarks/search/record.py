"""Measure every plan of a model's space: the tables that policies are replayed on.

    python -m benchmarks.search.record NAME ... [--estimate] [--limit PLANS] [--fastest 10]

Every plan that the space lists, rescues of whatever fails, single settings around the ten fastest
that are faster than the original: seconds to build, calibrate, start, load, settle and score, raw
timing blocks in order, scores on the search's part and on all samples, and what failures cost. The
six fastest that keep the budget are timed in two fresh pairs more. A plan far behind the best so
far gets fewer blocks. One model is whole before the next begins; what is done lies in
``build/search/NAME``, and the same command goes on where it was killed. Nothing else is timed on
this machine while a plan is; between plans others get their turn. Tables:
``benchmarks/search/tables/NAME.json.gz``, written when whole. The cores idle; ``--estimate`` says
for how long.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.search.exhaustive import Exhaustive
from benchmarks.search.models import NAMES, WORK, asked
from benchmarks.search.recording import Kept, Recording
from benchmarks.search.spaces import digest, listing
from benchmarks.search.table import TABLES, About, Row, Table, true_ratio, write
from benchmarks.speed.neighbour import to_itself
from ortune.backends.bucketed import Bucketed
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.event import ignore_event
from ortune.core.hardware.cpus import effective_cpus, instruction_sets
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import read_header
from ortune.search.experiment.prepare import prepare_context
from ortune.search.optimize import explore_space, make_folder, plan_calibration, select_targets
from ortune.search.policy import View
from ortune.search.recipe.space import Space

PAIR_S = 1.5
"""Seconds of timing a plan: five blocks, which are half as long as in a search of 3 minutes."""
CONFIRMED, AGAIN = 6, 2
"""Of so many of the fastest more fresh pairs are timed, and how many."""
SAVED, BUILDS, BUILD_S = 0.25, 0.3, 4.0
"""For estimates: rescues that are needed, plans that build something new, seconds of a build."""
_EVER = 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--limit", type=int, help="plans to try; then no table is written")
    parser.add_argument("--fastest", type=int, default=10, help="plans with settings around them")
    parser.add_argument("--estimate", action="store_true", help="say how long it takes, no more")
    given = parser.parse_args()
    for name in given.names or NAMES:
        try:
            limit = 0 if given.estimate else given.limit
            found, whole = record(name, limit=limit, fastest=given.fastest)
        except OrtuneError as error:
            print(f"{name}: {error}", flush=True)
            continue
        write(TABLES / f"{name}.json.gz" if whole else WORK / name / "part.json.gz", found)
        said = "" if whole else ", not whole yet"
        best = f", best {true_ratio(found.best):.3f}" if found.rows else ""
        print(f"{name}: {len(found.rows)} rows{said}{best}", flush=True)


@dataclass(frozen=True)
class Opened:
    """A job ready to be measured."""

    context: Context
    space: Space
    prepared_s: float


def opened(name: str) -> Opened:
    """Prepare a model as `optimize` does; what an earlier recording prepared is checked."""
    request = asked(name, WORK / name / "run")
    root, began = Path(request.out), time.perf_counter()
    experiment = request.read_experiment()
    targets = select_targets(request, (), experiment)
    make_folder(root)
    context = prepare_context(experiment, root, ignore_event, on=request.on, finalists=3)
    exact = request.data is None and not request.evaluate
    context = plan_calibration(context, targets, exact)
    space = explore_space(context, targets, exact, lambda text: None)
    seconds = time.perf_counter() - began
    return Opened(context, space, _first(root.parent / "prepared.json", seconds))


def _first(path: Path, seconds: float) -> float:
    """Return what preparing took when it was first done: later the samples are there."""
    if not path.is_file():
        write_text(path, json.dumps(seconds))
    return float(json.loads(path.read_text("utf-8")))


def frozen(folder: Path, space: Space) -> str:
    """Return the digest of the space, the one that the rows in this folder are of.

    Raises:
        OrtuneError: The space lists other plans than when the first row was measured.
    """
    path, now = folder / "space.json", listing(space)
    if not path.is_file():
        write_text(path, json.dumps({"digest": digest(space), "listing": now}))
    known = json.loads(path.read_text("utf-8"))
    if known["digest"] != digest(space):
        more, less = sorted(now.keys() - known["listing"]), sorted(known["listing"].keys() - now)
        raise OrtuneError(
            f"the space has changed since this table was begun: {len(more)} plans are new "
            f"({', '.join(more[:3])}), {len(less)} are gone ({', '.join(less[:3])}), or what "
            "rescues and settings they have; rows of two spaces do not mix",
            fix=f"remove build/search/{folder.name} to measure anew, or go back to that code",
        )
    return str(known["digest"])


def record(name: str, *, limit: int | None = None, fastest: int = 10) -> tuple[Table, bool]:
    """Measure what is not measured yet; return the table, and whether it is whole.

    Args:
        limit: Plans to try at most.
        fastest: Plans around which every single setting is tried.
    """
    kept = Kept(WORK / name / "rows")
    with ExitStack() as stack:
        with to_itself():
            found = opened(name)
            space_digest = frozen(WORK / name, found.space)
            attempts = Recording(found.context, PAIR_S, ignore_event, stack, kept)
            attempts.original()
        estimate(name, found, kept, fastest)
        whole = try_all(attempts, found.space, limit, fastest)
        if whole:
            confirm(attempts)
        return Table(_about(name, space_digest, found), tuple(current(attempts))), whole


def try_all(
    attempts: Recording, space: Space, limit: int | None = None, fastest: int = 10
) -> bool:
    """Try all there is, or some of it; say whether nothing is left."""
    policy, done = Exhaustive(fastest=fastest), 0
    while True:
        keys = attempts.kept.rows
        trials = [
            t
            for t in attempts.ledger.trials
            if t.key in keys and t.key == attempts.trial_key(t.plan)
        ]
        trials.sort(key=lambda trial: trial.stage != "baseline")
        proposal = policy.next(View(attempts.context.facts, space, trials, _EVER, _EVER))
        if proposal is None:
            return True
        if done == limit:
            return False
        done += 1
        began = time.perf_counter()
        trial = attempts.try_plan(proposal)
        seconds = time.perf_counter() - began
        print(f"  {trial.plan}: {trial.status}, {trial.why} ({seconds:.1f} s)", flush=True)


def confirm(attempts: Recording) -> None:
    """Time the fastest in fresh pairs, until those that are the fastest by all pairs have them."""
    while True:
        fit = [r for r in current(attempts)[1:] if r.passes and r.truth is not None]
        fastest = sorted(fit, key=true_ratio)[:CONFIRMED]
        row = next((r for r in fastest if len(r.pairs) <= AGAIN), None)
        if row is None:
            return
        attempts.again(row)


def current(attempts: Recording) -> list[Row]:
    """Return the rows of the code as it is, the original first, then in the order of the plans."""
    order = {trial.key: at for at, trial in enumerate(attempts.ledger.trials)}
    rows = [r for r in attempts.kept.rows.values() if r.key == attempts.trial_key(r.plan)]
    return sorted(rows, key=lambda row: (row.stage != "baseline", order.get(row.key, len(order))))


def estimate(name: str, found: Opened, kept: Kept, fastest: int) -> float:
    """Print and return the seconds that are left, roughly: by what the original takes."""
    every = listing(found.space)
    plans = sum(not key.startswith("around ") for key in every)
    rescues = sum(len(some) for key, some in every.items() if not key.startswith("around "))
    around = [len(some) for key, some in every.items() if key.startswith("around ")]
    settings = fastest * round(sum(around) / max(1, len(around)))
    first = next(row for row in kept.rows.values() if row.stage == "baseline")
    start_s = first.start_s + first.load_s + first.first_s + first.warm_s
    timing_s = max(PAIR_S, 2 * first.block_s)
    likely = plans + rescues * SAVED + settings
    left = max(0.0, likely - len(kept.rows)) * (start_s + timing_s)
    left += (plans + rescues * SAVED) * first.final_s / 2 + settings * first.search_s / 2
    left += (plans + rescues * SAVED) * BUILDS * (BUILD_S + first.final_s)
    left += CONFIRMED * AGAIN * (timing_s + 2 * start_s)
    print(
        f"{name}: {plans} plans, at most {rescues} rescues, about {settings} settings; a start "
        f"takes {start_s:.1f} s, a block {first.block_s:.2f} s, scoring {first.search_s:.1f} s, "
        f"on all samples {first.final_s:.1f} s; "
        f"{len(kept.rows)} measured, about {left / 60:.0f} minutes left",
        flush=True,
    )
    return left


def _about(name: str, space_digest: str, found: Opened) -> About:
    job, space = found.context.job, found.space
    return About(
        name=name,
        space=space_digest,
        budget=str(job.budget),
        workload=job.workload,
        baseline=job.baseline,
        facts=found.context.facts,
        machine=dict(job.machine),
        versions=dict(job.versions),
        pair_s=PAIR_S,
        prepared_s=found.prepared_s,
        flags=" ".join(sorted(instruction_sets())),
        cpus=effective_cpus(),
        offered=tuple((one.backend, one.capabilities) for one in space.targets),
        pinned=tuple(tuple(sorted(one.pinned)) for one in space.targets),
        deadlines=found.context.deadlines,
        by_operator=getattr(read_header(found.context.root), "by_operator", {}),
        exact=space.exact,
        buckets=space.buckets if isinstance(space.buckets, Bucketed) else None,
    )


if __name__ == "__main__":
    main()
