"""The search's memory: one JSON line a trial, append only, safe to kill and resume.

RUN/header.json says what was asked, RUN/ledger.jsonl holds the trials, RUN/ending.json what was
concluded; RUN/batches/N/ledger.jsonl has the trials at other batches, and RUN/machines/NAME is a
run of its own, of the finalists on another machine. A line without its newline
was being written when the process died: it is cut off. A later line of the same key and part
replaces the former: it was concluded again by what the run learnt since.
"""

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from ortune.core import regular_file
from ortune.core.atomic_write import append_line, cut_torn, hold_lock, read_whole_lines, write_text
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.event import Event, Sink, TimeLeft, TrialDone, TrialStarted
from ortune.core.plugins import codec, stored
from ortune.core.progress.board import Board
from ortune.core.session import Recorded
from ortune.core.study import AT_WORK, Ending, Header, Job, SampleScores, Study
from ortune.core.system import lock_file
from ortune.core.trial import BESIDE, Score, Status, Trial
from ortune.core.version import __version__
from ortune.metrics.common.user_metric import UserMetric

T = TypeVar("T")

_OWN = "do not trust this run; if it is yours, search again without that setting"
_LEDGER, _LOCK, _NOW = "ledger.jsonl", "lock", "now.json"
ORIGINAL = "original"
"""In the place of a key: the model as it came, on the baseline's backend."""


class Ledger:
    """The trials of one run's folder.

    Attributes:
        trials: One a key and part, the last that was recorded.
        former: Those that were set aside.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / _LEDGER
        cut_torn(self._path)
        self._lines = _read_lines(self._path)
        self.trials = _latest_trials(self._lines)
        self.former: list[Trial] = []

    def set_aside(self, is_void: Callable[[Trial], bool]) -> None:
        """Take out trials of earlier commands that say nothing any more: they are made again.

        They stay on disk until a new one of the same key and part replaces them.
        """
        self.former = [trial for trial in self.trials if is_void(trial)]
        self._select_trials()

    def _select_trials(self) -> None:
        void = set(map(id, self.former))
        self.trials = [t for t in _latest_trials(self._lines) if id(t) not in void]

    def find(self, key: str, part: str) -> Trial | None:
        """Return the recorded trial of a key on a part of the data."""
        return next((t for t in self.trials if t.key == key and t.part == part), None)

    def append(self, trial: Trial) -> None:
        """Record a trial in place of a former one; it is on disk when this returns."""
        line = json.dumps(codec.encode(trial), separators=(",", ":"))
        append_line(self._path, line)
        self._lines.append(trial)
        self._select_trials()

    def list_judged_scores(self) -> list[Score]:
        """Return every score that a finalist was ever given here, those replaced since too.

        One that was only concluded again has the scores that it had.
        """
        judged = {}
        for trial in self._lines:
            if trial.part == "final" and (score := trial.score) is not None:
                judged[trial.key, score.samples, score.value] = score
        return list(judged.values())

    def count_looked_at(self) -> int:
        """Count the plans whose accuracy was read in the search: see `count_looked_at`."""
        return count_looked_at((*self.former, *self.trials))


def count_looked_at(trials: Iterable[Trial]) -> int:
    """Count the plans whose accuracy was read in a search, but those that change no numbers.

    Those that answer alike, by all their last scores, count once. What is tried after the choice,
    to tell what each change brought, is no choice.
    """
    scores = {
        trial.key: tuple(repr(score.value) for score in trial.scores)
        for trial in trials
        if trial.part == "search" and trial.plan.lossy and trial.scores
        if trial.stage not in (BESIDE, "history")
    }
    return max(1, len(set(scores.values())))


def has_trials(root: Path) -> bool:
    """Return whether a run's folder has a trial, or another search is at work in it."""
    ledger = root / _LEDGER
    try:
        _require_no_links(root)
    except BadData:
        return True  # no search may begin there, and nothing is removed
    return (ledger.is_file() and ledger.stat().st_size > 0) or is_at_work(root)


def is_at_work(root: Path) -> bool:
    """Return whether a search is at work in a run's folder; nothing is made by asking."""
    try:
        with (root / _LOCK).open("rb") as file:
            return not lock_file(file.fileno())
    except OSError:
        return False


def lock_run(root: Path) -> AbstractContextManager[None]:
    """Hold a run's folder for one search.

    Raises:
        BadData: Another search is at work in it, when the context is entered; at once, it has
            links out of it; or, when the context is left, it is not there any more.
    """
    _require_no_links(root)
    return _hold_run(root)


@contextmanager
def _hold_run(root: Path) -> Iterator[None]:
    fix = "wait for it, or choose another -o folder"
    conflict = BadData(f"another search is running in {root}", fix=fix)
    with hold_lock(root / _LOCK, conflict, wait_s=0.3):  # `is_at_work` holds it for a moment
        before = _identify_folder(root)
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        if _identify_folder(root) != before:
            raise BadData(
                f"the run's folder {root} was moved or removed while a search was at work in it",
                fix="put it back, or name where it is now with -o, and run the same command again",
            ) from failure
        if failure is not None:
            raise failure


def _identify_folder(root: Path) -> tuple[int, int] | None:
    """Return what a folder has for good, wherever it is moved; None where there is none."""
    with suppress(OSError):
        status = root.stat()
        return status.st_dev, status.st_ino
    return None


def _require_no_links(root: Path) -> None:
    """Refuse links out of a run's folder: they would be written through, or packed."""
    home = root.resolve()
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(home):
                raise BadData(
                    f"'{path}' links out of the run's folder",
                    fix=f"{stored.DISTRUST}, or put what it links to in its place",
                )


def _read_lines(path: Path) -> list[Trial]:
    """Read whole lines; a last one that is being written is left out."""
    try:
        lines = [stored.parse_json(line) for line in read_whole_lines(path)]
    except ValueError as error:
        raise BadData(f"{path} cannot be read: {error}", fix="choose another -o folder") from None
    return [decode_trial(line, path) for line in lines]


def decode_trial(data: object, source: Path) -> Trial:
    """Rebuild a trial that another run has recorded.

    Raises:
        BadData: It holds what a trial of a file may not.
    """
    trial = _decode_record(Trial, data, source)
    _require_inside(source, trial.key, *([trial.artefact] if trial.artefact else []))
    return trial


def _latest_trials(trials: Iterable[Trial]) -> list[Trial]:
    """Return one trial a key and part, the last, in the place of the first."""
    return list({(trial.key, trial.part): trial for trial in trials}.values())


def _require_inside(path: Path, *names: str) -> None:
    """Refuse names that files of the run are called by and that lead out of its folder."""
    for name in names:
        paths = (PurePosixPath(name), PureWindowsPath(name))
        if any(".." in pure_path.parts or pure_path.anchor for pure_path in paths) or "\0" in name:
            raise BadData(f"{path}: '{name}' leads out of the run's folder", fix=stored.DISTRUST)


def _decode_record(kind: type[T], data: object, path: Path) -> T:
    """Rebuild a record; BadData where a setting is none that a file may set, or it is not read."""
    try:
        stored.demand_safe_data(data, str(path), fix=_OWN)
    except BadSettings as error:
        raise BadData(error.what, fix=error.fix) from None
    try:
        return codec.decode(kind, data)
    except OrtuneError as error:
        version = "of an unknown version"
        with suppress(BadData, KeyError, TypeError):  # the header says which wrote the run
            header = _load_json(path.parent / "header.json") or {}
            version = str(header["job"]["versions"]["ortune"])
        raise BadData(
            f"{path}, written by ortune {version}, cannot be read by {__version__}: {error.what}",
            fix=f"read it with ortune {version}, or search again into another -o folder",
        ) from None


def write_header(root: Path, header: Header) -> None:
    """Write what was asked."""
    write_text(root / "header.json", json.dumps(codec.encode(header), indent=1))


def read_header(root: Path) -> Header | None:
    """Return what a run was started with, or None when the folder holds no run."""
    path = root / "header.json"
    _require_no_links(root)
    data = _load_json(path)
    if data is None:
        return None
    header = _decode_record(Header, data, path)
    _require_inside(path, *header.models)
    return header


def write_ending(root: Path, ending: Ending) -> None:
    """Write what was concluded."""
    write_text(root / "ending.json", json.dumps(codec.encode(ending), indent=1))


def write_sample_scores(root: Path, key: str, scores: SampleScores) -> None:
    """Keep what a finalist scored on each sample, for a report."""
    (root / "answers").mkdir(exist_ok=True)
    write_text(root / "answers" / f"{key}.json", json.dumps(codec.encode(scores)))


def read_sample_scores(root: Path, key: str) -> SampleScores | None:
    """Return what a finalist scored on each sample; None where that was not kept.

    Raises:
        BadData: It cannot be read, or does not fit together.
    """
    path = root / "answers" / f"{key}.json"
    if not re.fullmatch("[0-9a-f]+", key) or (data := _load_json(path)) is None:
        return None
    kept = _decode_record(SampleScores, data, path)
    if len({len(kept.samples), len(kept.base), len(kept.scores)}) > 1 or (
        kept.snr_db and len(kept.snr_db) != len(kept.samples)
    ):
        raise BadData(f"{path}: scores of other samples", fix=_OWN)
    return kept


def write_kernels(root: Path, key: str, recorded: Recorded) -> None:
    """Keep what the runtime recorded of the original's or a finalist's kernels, for a report."""
    (root / "kernels").mkdir(exist_ok=True)
    write_text(root / "kernels" / f"{key}.json", json.dumps(codec.encode(recorded)))


def read_kernels(root: Path, key: str) -> Recorded | None:
    """Return what the runtime recorded; None where that was not kept.

    Raises:
        BadData: It cannot be read.
    """
    path = root / "kernels" / f"{key}.json"
    if not re.fullmatch(f"{ORIGINAL}|[0-9a-f]+", key) or (data := _load_json(path)) is None:
        return None
    return _decode_record(Recorded, data, path)


def read_trials(root: Path) -> list[Trial]:
    """Return the trials of a folder; nothing is cut off, as a search that goes on does."""
    return _latest_trials(_read_lines(root / _LEDGER))


def is_finished(root: Path) -> bool:
    """Say whether a run came to its end: it was neither killed nor interrupted."""
    data = _load_json(root / "ending.json")
    return isinstance(data, dict) and data.get("finished") != "interrupted"


@dataclass(frozen=True)
class Now:
    """What a search is at, for whoever watches it.

    Attributes:
        share: Of the time that is behind it.
        until: When its time is up, in seconds since 1970.
    """

    stage: str = ""
    plan: str = ""
    best: str = ""
    share: float = 0.0
    until: float = 0.0


def keep_now(root: Path, sink: Sink) -> Sink:
    """Return a sink that forwards events and keeps what the search is at in its folder."""
    board = Board()

    def forward_event(event: Event) -> None:
        board.record_event(event)
        sink(event)
        if isinstance(event, (TimeLeft, TrialStarted, TrialDone)):
            now = Now(
                board.stage,
                board.plan,
                board.describe_best(),
                board.measure_share(),
                time.time() + (board.estimate_remaining_s() or 0.0),
            )
            with suppress(OrtuneError, OSError):  # nobody may be watching
                write_text(root / _NOW, json.dumps(codec.encode(now)))

    return forward_event


def read_now(root: Path) -> Now | None:
    """Return what the search in a run's folder is at; None where none is at work."""
    if not is_at_work(root) or (data := _load_json(root / _NOW)) is None:
        return None
    return _decode_record(Now, data, root / _NOW)


def stamp_run(root: Path) -> str:
    """Return what changes whenever more is known of a run."""
    stamps = []
    for name in (_LEDGER, "header.json", "ending.json"):
        with suppress(OSError):
            status = (root / name).stat()
            stamps.append(f"{status.st_mtime_ns:x}-{status.st_size:x}")
    return ".".join((*stamps, str(is_at_work(root))))


def watch_study(root: Path) -> Study:
    """Rebuild a study from its folder as `read_study` does, and say whether it is at work."""
    study = read_study(root)
    if not is_at_work(root):
        return study
    return replace(study, ending=replace(study.ending, finished=AT_WORK))


def read_study(root: str | Path) -> Study:
    """Rebuild a study from its folder, finished or not.

    It is data: no code that the run names is imported, a metric of the user's own included, and
    none of its settings is more than a file from elsewhere may set.

    Raises:
        BadData: The folder holds no run, its baseline was not measured, or it holds what a run
            may not.
    """
    root = Path(root)
    study = _build_study(root, read_trials(root))
    # Other machines on which finalists were timed: a run of its own each, once it has a trial.
    folders = sorted(path.parent for path in root.glob(f"machines/*/{_LEDGER}"))
    timed = {folder: trials for folder in folders if (trials := read_trials(folder))}
    machines = {folder.name: _build_study(folder, trials) for folder, trials in timed.items()}
    return replace(study, machines=machines)


def _build_study(root: Path, trials: Sequence[Trial]) -> Study:
    header = read_header(root)
    if header is None or not trials:
        raise BadData(f"no run in {root}", fix="give the -o folder of an `ortune optimize`")
    data = _load_json(root / "ending.json")
    ending = Ending() if data is None else _decode_record(Ending, data, root / "ending.json")
    changed = tuple(t for t in trials if t.status is not Status.UNCHANGED)
    header = replace(header, job=disable_imports(header.job, changed))
    folders = (path.parent for path in root.glob(f"batches/*/{_LEDGER}"))
    batches = {int(folder.name): folder for folder in folders if folder.name.isdecimal()}
    timed = {batch: tuple(read_trials(batches[batch])) for batch in sorted(batches)}
    return Study(
        str(root),
        header,
        changed,
        ending,
        {b: batch_trials for b, batch_trials in timed.items() if batch_trials},
    )


def disable_imports(job: Job, trials: Iterable[Trial]) -> Job:
    """Return a stored job whose metric, where a function of the user's makes it, imports nothing.

    Its direction is read off the scores: where lower is better they have an upper end alone.
    """
    budget = job.budget
    if not isinstance(budget.metric, UserMetric):
        return job
    scores = [trial.score for trial in trials if trial.score]
    lower = any(score.low == -math.inf and score.high < math.inf for score in scores)
    lower = lower or (budget.relative and budget.limit > 0)
    return replace(job, budget=replace(budget, metric=budget.metric.make_unimported(lower=lower)))


def _load_json(path: Path) -> Any | None:
    if not path.is_file():
        return None
    try:
        return stored.parse_json(regular_file.read_text(path))
    except ValueError as error:
        raise BadData(f"{path} cannot be read: {error}", fix="choose another -o folder") from None
