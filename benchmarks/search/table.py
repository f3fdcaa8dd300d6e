"""A table: every plan of one model's space, what it cost and what it gave, on one kind of CPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.search.bursts import Turn
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData
from ortune.core.facts import Facts
from ortune.core.plugins import codec
from ortune.core.step import Edit, Quantizer, Step
from ortune.core.trial import Pair, Plan, Score, Status, Verdict
from ortune.core.workload import Workload
from ortune.measurement.timing import stats
from ortune.measurement.timing.turns import Deadlines

TABLES = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Cut:
    """What one run of steps took to build on what stands before it.

    Attributes:
        steps: The recipe until here, spelled.
        seconds: Without what calibration took.
        ranges: What was asked of samples, observer by observer, each on the model it was asked of.
        calibrated: Of these what was not known -> seconds of the pass that found it out, and
            perhaps others with it.
        error: Why it could not be built; empty where it was.
    """

    steps: str
    seconds: float
    ranges: tuple[str, ...] = ()
    calibrated: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Row:
    """One plan measured as far as it can count, and all that it cost.

    Attributes:
        key: Digest of everything the result depends on; it may change with a plugin's code.
        cuts: The builds that were made for this plan; those made before stand in other rows.
        start_s: Until the process is there; `load_s` until the session is, `first_s` until it has
            answered once.
        warm_s: From then to the first block; `block_s` is a whole turn, all waiting included.
        search_s: Scoring the search's part; `final_s` all samples that finalists are judged on.
        pairs: Blocks of one pair of processes each: the search's, then fresh ones of the fastest.
            A plan far behind the best has fewer blocks, as any rule would have ended there.
        scores: On the search's part, `final` on all; none of what is clearly slower than the
            original, as no search asks for them. A setting that is far behind the best has the
            scores of the plan around which it was tried; the fastest settings alone have `final`.
        died: In what it failed: build, load, timing, search, final; empty where it did not.
        died_s: How long that took, for a hang until it was given up.
    """

    key: str
    plan: Plan
    stage: str
    status: Status
    why: str = ""
    neighbour_of: str = ""
    size: int | None = None
    edits: tuple[Edit, ...] = ()
    peak_rss: int = 0
    cuts: tuple[Cut, ...] = ()
    start_s: float = 0.0
    load_s: float = 0.0
    first_s: float = 0.0
    warm_s: float = 0.0
    block_s: float = 0.0
    search_s: float = 0.0
    final_s: float = 0.0
    pairs: tuple[tuple[Turn, ...], ...] = ()
    scores: tuple[Score, ...] = ()
    final: tuple[Score, ...] = ()
    died: str = ""
    died_s: float = 0.0

    def timed(self) -> list[Pair]:
        """Return its pairs as the statistics read them."""
        return [Pair(tuple(turn.block() for turn in turns)) for turns in self.pairs]

    @cached_property
    def truth(self) -> float | None:
        """Latency over the original's by all that was timed; None where nothing was."""
        return stats.latency_ratio(self.timed()).value if any(self.pairs) else None

    @property
    def hung(self) -> bool:
        """Whether it gave no answer: a longer wait would have taken longer."""
        return self.why.startswith("no answer")

    @property
    def passes(self) -> bool:
        """Whether it ran and kept the budget on all samples."""
        judged = self.final or self.scores
        died = bool(self.died) or self.status in (Status.FAILED, Status.UNCHANGED)
        return not died and bool(judged) and judged[0].verdict is not Verdict.FAILS


@dataclass(frozen=True)
class About:
    """What one table was measured on and of: the header.

    Attributes:
        space: Digest of what the space lists.
        pair_s: Seconds of timing that a plan got, at most.
        deadlines: Of a plan's requests.
        by_operator: Operator -> its share of the original's time; empty where none was taken.
        prepared_s: Seconds until the search would have begun.
        flags: The CPU's instruction sets, all of them; `cpus` that could be used.
        offered: Backend as searched -> what its environment offers it, in the order of the search.
        pinned: Fields that are pinned on each of them.
        buckets: The baseline behind buckets, where padding can be cut.
    """

    name: str
    space: str
    budget: str
    workload: Workload
    baseline: Backend
    facts: Facts
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    pair_s: float
    prepared_s: float
    flags: str
    cpus: int
    offered: tuple[tuple[Backend, Capabilities], ...]
    pinned: tuple[tuple[str, ...], ...]
    deadlines: Deadlines = field(default_factory=Deadlines)
    by_operator: Mapping[str, float] = field(default_factory=dict)
    exact: bool = False
    buckets: Backend | None = None


@dataclass(frozen=True)
class Table:
    """All rows of a model, the original first."""

    about: About
    rows: tuple[Row, ...]

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        """What was built, by its steps."""
        return {cut.steps: cut for row in self.rows for cut in row.cuts}

    @cached_property
    def _found(self) -> dict[str, Row]:
        return {row.plan.spelling: row for row in self.rows}

    def find(self, plan: Plan) -> Row | None:
        """Return a plan's row."""
        return self._found.get(plan.spelling)

    def nearest(self, plan: Plan) -> Row | None:
        """Return the row that stands for a plan that was not measured: settings put together.

        Of the same steps and backend the one that differs in the fewest settings, the slowest of
        several: what was not measured gains nothing.
        """
        steps, kind = plan.recipe.steps, type(plan.backend)
        near = [
            r for r in self.rows if r.plan.recipe.steps == steps and type(r.plan.backend) is kind
        ]
        return min(
            (r for r in near if r.truth is not None),
            key=lambda r: (_differ(r.plan.backend, plan.backend), -(r.truth or 0.0)),
            default=None,
        )

    @cached_property
    def best(self) -> Row:
        """Return the fastest that keeps the budget, the original where nothing is faster."""
        fit = [row for row in self.rows if row.passes and row.truth is not None]
        return min([self.rows[0], *fit], key=true_ratio)

    def standing_for(self, plan: Plan) -> Row | None:
        """Return a plan's row or the one that stands for it; None where there is neither."""
        return self.find(plan) or self.nearest(plan)


def true_ratio(row: Row) -> float:
    """Return what a row's plan takes in the original's time; the original's is 1 by definition."""
    return 1.0 if row.stage == "baseline" or row.truth is None else row.truth


def cuts_of(steps: Sequence[Step]) -> list[int]:
    """Return where builds of a recipe are kept: before every quantizer, and at its end."""
    inner = [at for at, step in enumerate(steps) if at and isinstance(step, Quantizer)]
    return [*inner, len(steps)] if steps else []


def spelled(steps: Sequence[Step]) -> str:
    """Spell steps as they stand in `Cut.steps`."""
    return ", ".join(map(str, steps))


def write(path: Path, table: Table) -> None:
    """Write a table, the same bytes for the same rows."""
    text = json.dumps(codec.encode(table), separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> Table:
    """Read a table.

    Raises:
        BadData: There is none.
    """
    if not path.is_file():
        raise BadData(f"no table {path.name}", fix="python -m benchmarks.search.record NAME")
    return codec.decode(Table, json.loads(gzip.decompress(path.read_bytes())))


def tables(names: Sequence[str] = ()) -> Iterator[Table]:
    """Read the tables of these names, or all there are."""
    every = [f"{name}.json.gz" for name in names] or sorted(p.name for p in TABLES.glob("*.gz"))
    for name in every:
        yield read(TABLES / name)


def _differ(one: Backend, two: Backend) -> int:
    a, b = vars(one), vars(two)
    return sum(a[name] != b.get(name) for name in a)
