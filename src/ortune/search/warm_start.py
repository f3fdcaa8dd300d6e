"""A search begins with what paid on this kind of machine before, and leaves what paid in it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ortune.core.atomic_write import hold_lock, remove_path, write_text
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData, OrtuneError
from ortune.core.event import Note, Sink
from ortune.core.facts import Facts
from ortune.core.hardware.paid import Paid, PlanTally
from ortune.core.outputs import find_cache_folder
from ortune.core.plugins.plugin import Plugin, digest, encode
from ortune.core.step import AS_IS
from ortune.core.study import Study
from ortune.core.trial import BESIDE, Plan, Trial
from ortune.core.wording import format_count
from ortune.core.workload import Workload
from ortune.measurement.process import query_capabilities
from ortune.search.expectation.features import latency_features, list_settings
from ortune.search.expectation.priors import model_kind
from ortune.search.expectation.surrogate import Features
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import read_header, read_study, write_header

MOST = 256
"""Tallies of a kind of machine; those that were added to longest ago are forgotten first."""
COUNT = 32
"""Searches from which on a tally is halved: what is older counts less and less."""
FEATURE = re.compile(r"[a-z@]+(:[\w.@-]*(/\w+)?(=[\w.,()\[\]' -]*)?)?", re.ASCII)
LONGEST, FEATURES = 80, 24
"""Characters of a feature, and features of a tally, at most."""


def count_timings(trials: Sequence[Trial], facts: Facts) -> Paid:
    """Count the timed trials of one search, like plans together: each tally is of one search.

    The original and plans with a plugin of the user's are left out.
    """
    by_features: dict[tuple[str, ...], tuple[Features, list[float]]] = {}
    for trial in {trial.key: trial for trial in trials}.values():  # a finalist's is the last
        plan, ratio = trial.plan, trial.ratio.value if trial.ratio else 0.0
        if (
            trial.stage in ("baseline", BESIDE)
            or ratio <= 0
            or not is_builtin(plan.backend, *plan.recipe.steps)
        ):
            continue
        features = latency_features(plan, public=True)
        if len(features) <= FEATURES and all(map(is_recordable, features)):
            by_features.setdefault(tuple(features), (features, []))[1].append(math.log(ratio))
    model, newest = model_kind(facts), list(reversed(by_features.values()))[:MOST]
    return Paid(
        tuple(
            PlanTally(model, features, mean=fmean(log_ratios)) for features, log_ratios in newest
        )
    )


def merge_records(paid: Paid, more: Paid) -> Paid:
    """Add what a search found to what was known."""
    tallies = {tally.key: tally for tally in paid.tallies}
    new = [_merge_tallies(tallies.pop(tally.key, None), tally) for tally in more.tallies]
    return Paid((*new, *tallies.values())[:MOST])


def is_recordable(feature: str) -> bool:
    """Whether a feature has a form that may be recorded."""
    return len(feature) <= LONGEST and FEATURE.fullmatch(feature) is not None


def is_builtin(*plugins: Plugin) -> bool:
    """Whether plugins and those in their fields are ortune's: the names of others may tell."""
    for plugin in plugins:
        values = (getattr(plugin, field.name) for field in fields(plugin))
        inner = (value for value in values if isinstance(value, Plugin))
        if not type(plugin).__module__.startswith("ortune.") or not is_builtin(*inner):
            return False
    return True


def _merge_tallies(former: PlanTally | None, new: PlanTally) -> PlanTally:
    """Join two tallies; after Chan, Golub and LeVeque, 1979, for the squares.

    One of many searches is halved, so that those to come count for more.
    """
    if former is None:
        return new
    searches = former.searches + new.searches
    share, difference = new.searches / searches, new.mean - former.mean
    mean = former.mean + share * difference
    squares = former.squares + new.squares + former.searches * share * difference**2
    if searches >= COUNT:
        searches, squares = searches // 2, squares / 2
    return replace(former, searches=searches, mean=mean, squares=squares)


FORMAT = 1
_LARGEST = 1024 * 1024
"""Bytes of a file that is read."""
_FILES = 16
"""Kinds that are kept; the file that was written longest ago goes first."""
WAIT_S = 2.0
_RUNTIMES = ("ortune", "onnxruntime", "onnxruntime-ep-openvino", "openvino")
BOUNDS: Mapping[str, tuple[float, float]] = {
    "searches": (1, 1000),
    "mean": (-20.0, 20.0),
    "squares": (0.0, 1e6),
}


def records_folder() -> Path | None:
    """Return where the files lie, whether or not there are any; None without a home."""
    cache = find_cache_folder()
    return None if cache is None else cache / "paid"


def list_record_files() -> tuple[Path, ...]:
    """Return the files that there are, the newest first."""
    home = records_folder()
    files: list[tuple[float, Path]] = []
    if home is not None:
        with suppress(OSError):
            files = [(path.stat().st_mtime, path) for path in home.glob("*.json")]
    return tuple(path for _, path in sorted(files, reverse=True))


def machine_kind(
    baseline: Backend, workload: Workload, offered: Capabilities
) -> dict[str, str] | None:
    """Return what must agree for one search to learn from another.

    CPU, runtimes to their second number, what ratios are to, and what is measured. None where
    the baseline or the workload is a plugin of the user's: their names are not recorded.
    """
    if not is_builtin(baseline, workload):
        return None
    versions = {
        name: ".".join(offered.versions[name].split(".")[:2])
        for name in _RUNTIMES
        if name in offered.versions
    }
    driven = " ".join((workload.name(), *list_settings(workload, public=True)))
    ratio_to = " ".join(latency_features(Plan(AS_IS, baseline), public=True))
    return {**offered.machine, **versions, "baseline": ratio_to, "workload": driven}


@dataclass(frozen=True)
class MachineRecord:
    """The file of one kind of machine."""

    path: Path
    kind: Mapping[str, str]

    @classmethod
    def for_kind(cls, kind: Mapping[str, str] | None) -> MachineRecord | None:
        """Return the record of a kind; None where there is none, or no place for it."""
        home = records_folder()
        if kind is None or home is None:
            return None
        return cls(home / f"{digest(dict(kind))}.json", kind)

    def read(self) -> Paid:
        """Return what is known; nothing where there is no file.

        Raises:
            BadData: The file cannot be read, or is not what `add` writes for this kind.
        """
        try:
            if not self.path.is_file():
                return Paid()
            with self.path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except OSError as error:
            raise self._make_error(error.strerror or "it cannot be read") from None
        try:
            return parse_record(data, self.kind)
        except ValueError as error:
            raise self._make_error(str(error)) from None

    def add(self, record: Paid) -> None:
        """Add what a search found; a file that cannot be read is replaced.

        Raises:
            OrtuneError: It cannot be written.
        """
        if not record.tallies:
            return
        lock = self.path.with_name("lock")
        busy = OrtuneError(f"another process holds {lock}", fix="end it, or remove that file")
        with hold_lock(lock, busy, WAIT_S):
            try:
                former = self.read()
            except BadData:
                former = Paid()
            write_text(
                self.path, format_record(merge_records(former, record), self.kind), durable=False
            )
            for old in list_record_files()[_FILES:]:
                remove_path(old)

    def _make_error(self, why: str) -> BadData:
        return BadData(
            f"what paid on this machine before is not used: {self.path}: {why}",
            fix="remove that file; the next search writes it anew",
        )


def format_record(paid: Paid, kind: Mapping[str, str]) -> str:
    """Return the text of a file."""
    rows = [
        {name: round(v, 6) if isinstance(v, float) else v for name, v in encode(tally).items()}
        for tally in paid.tallies
    ]
    content = {"format": FORMAT, "kind": dict(kind), "tallies": rows}
    return json.dumps(content, separators=(",", ":")) + "\n"


def parse_record(data: bytes, kind: Mapping[str, str]) -> Paid:
    """Read the content of a file that anybody may have written.

    Raises:
        ValueError: It is not what `format_record` gives for this kind; the text says why.
    """
    if len(data) > _LARGEST:
        raise ValueError("it is too large")
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("another version wrote it")
    if content.get("kind") != dict(kind):
        raise ValueError("it is of another machine")
    rows = content.get("tallies")
    if not isinstance(rows, list) or len(rows) > MOST:
        raise ValueError("its list of tallies is missing or too long")
    tallies = tuple(map(_parse_tally, rows))
    if len({tally.key for tally in tallies}) < len(tallies):
        raise ValueError("two tallies are of the same plans")
    return Paid(tallies)


def _parse_tally(row: Any) -> PlanTally:
    names = {field.name for field in fields(PlanTally)}
    if not isinstance(row, dict) or row.keys() != names:
        raise ValueError("a tally has other fields")
    model, weights = row["model"], row["features"]
    if not isinstance(model, list) or len(model) != 2:
        raise ValueError("a tally is of no kind of model")
    if not isinstance(weights, dict) or not 1 <= len(weights) <= FEATURES:
        raise ValueError("a tally has no features, or too many")
    if not all(
        isinstance(feature, str) and is_recordable(feature) for feature in (*model, *weights)
    ):
        raise ValueError("a tally has features of another form")
    for weight in weights.values():
        _require_number("a weight", weight, (0.0, 1.0))
    for name, bounds in BOUNDS.items():
        _require_number(name, row[name], bounds)
    return PlanTally(tuple(model), weights, **{name: row[name] for name in BOUNDS})


def _require_number(name: str, value: Any, bounds: tuple[float, float]) -> None:
    kinds = int if name == "searches" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ValueError(f"{name} is not a number")
    if not (bounds[0] <= value <= bounds[1] and math.isfinite(value)):
        raise ValueError(f"{name} is out of bounds")


def record_for(baseline: Backend, workload: Workload) -> MachineRecord | None:
    """Return the record for a job on this machine; None where it has no place."""
    return MachineRecord.for_kind(machine_kind(baseline, workload, query_capabilities(baseline)))


def load_warm_start(
    context: Context, record: MachineRecord | None, sink: Sink, *, by_region: bool = True
) -> Context:
    """Return the context with all that the run knows before its first trial: its header's.

    Before that trial the record is copied into the header; later the header alone counts, so that
    a run goes on, or is replayed, whatever the record says by then.

    Args:
        by_region: Whether this command lets plans differ in precision by region.
    """
    header = read_header(context.root)
    assert header is not None, "a prepared run has a header"
    if record is not None and not (context.root / "ledger.jsonl").is_file():
        header = replace(header, paid=_read_and_note(record, sink))
        write_header(context.root, header)
    return replace(
        context,
        paid=header.paid,
        by_operator=header.by_operator,
        by_region=by_region and header.by_region,
    )


def _read_and_note(record: MachineRecord, sink: Sink) -> Paid:
    try:
        former = record.read()
    except BadData as error:
        sink(Note(error.what))
        return Paid()
    if former.tallies:
        many = format_count(len(former.tallies), "kind")
        text = f"known from earlier searches on this kind of machine: {many} of plans"
        sink(Note(f"{text} ({record.path}; --no-warm-start leaves it out)"))
    return former


def is_concluded(root: Path) -> bool:
    """Whether an earlier command brought the run to its end: then its trials are counted."""
    with suppress(OrtuneError):
        return read_study(root).finished != "interrupted"
    return False


def record_study(study: Study, record: MachineRecord, sink: Sink) -> None:
    """Add what paid to the record of the machine; a record that cannot be written is said."""
    try:
        record.add(count_timings(study.trials, study.header.facts))
    except OrtuneError as error:
        sink(Note(f"what paid is not recorded: {error.what}"))
