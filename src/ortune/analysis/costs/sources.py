"""Read what is to be priced: a run's folder, saved answers of `bench` and `loadtest`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ortune.analysis.benchmark.result import PER_FRAME
from ortune.core.errors import BadData
from ortune.core.study import Study
from ortune.core.trial import Interval
from ortune.experiment.ledger import read_study

_LATENCY = "latency"
_SERVED = "latency from the intended start"
"""What rows of a load test measure."""
_ONE = Interval(1.0, 1.0, 1.0)
_WHOLE = "{} holds whole frames: the work around the model is in the times, and no overhead"
_NOISY = "{} was measured on a machine too noisy for a verdict: its figures are shown, not claimed"


@dataclass(frozen=True)
class ServingOption:
    """One way to run the model.

    Attributes:
        name: Model and backend.
        inference_s: One run of one process alone.
        ratio: Its latency over the first option's, 99 %; None where both were not timed in turns.
        samples: In one run.
        accuracy: ``proved``, ``likely``, or empty where it was not judged.
        confirmed: Its source stands by the ratio: measured anew at the end of a search, and on a
            machine that was calm enough for a verdict.
    """

    name: str
    inference_s: float
    ratio: Interval | None = None
    samples: int = 1
    accuracy: str = ""
    confirmed: bool = True

    @property
    def faster(self) -> bool:
        """Whether a speed-up over the first option may be claimed."""
        return self.confirmed and self.ratio is not None and self.ratio.high < 1


@dataclass(frozen=True)
class Priced:
    """What a source offers to price.

    Attributes:
        options: The first is the measure of those timed in turns with it.
        measure: File name of the first option's model, and its backend.
        chosen: Name of the option that the source itself calls best, or empty.
        tuning_s: Seconds that its search took.
        notes: What the reader must know.
    """

    options: tuple[ServingOption, ...]
    measure: tuple[str, str]
    chosen: str = ""
    tuning_s: float = 0.0
    notes: tuple[str, ...] = ()


def read(source: Path) -> Priced:
    """Read a run's folder or a JSON file.

    Raises:
        BadData: It is neither, or holds no latencies.
    """
    if source.is_dir():
        return of_study(read_study(source))
    try:
        found = json.loads(source.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        found = None
    except FileNotFoundError:
        raise BadData(f"no file or folder {source}", fix="check the path") from None
    if not isinstance(found, Mapping) or not isinstance(found.get("rows"), list):
        raise BadData(
            f"{source} is not a result of `ortune bench` or `ortune loadtest`",
            fix="give the -o folder of `ortune optimize`, or a file of `ortune bench --json`",
        )
    if any(isinstance(row, Mapping) and row.get("measure") == _SERVED for row in found["rows"]):
        return of_load_test(found, source)
    return of_bench(found, source)


def joined(found: Sequence[Priced]) -> Priced:
    """Put several sources into one.

    Where a later source's first row is the very model and backend of the first source's, its rows
    keep their ratios: each was timed in turns with that row. Otherwise they have none.
    """
    first, *rest = found
    options = list(first.options)
    for source in rest:
        chained = source.measure == first.measure
        base, *others = source.options
        scale = first.options[0].inference_s / base.inference_s if chained else 1.0
        for option in others if chained else source.options:
            kept = option.ratio if chained else None
            options.append(replace(option, inference_s=option.inference_s * scale, ratio=kept))
    return replace(
        first,
        options=tuple(options),
        tuning_s=sum(source.tuning_s for source in found),
        notes=tuple(note for source in found for note in source.notes),
    )


def of_study(study: Study) -> Priced:
    """Offer the baseline, the front within the budget, the winner and the file as it came.

    A trial's latency is the baseline's median times its ratio, which was timed in turns. What a
    finished search did not measure anew at its end is shown and not claimed.
    """
    workload = study.job.workload
    if workload.measure != _LATENCY:
        raise BadData(
            f"{study.root} was searched under the workload '{workload}', not for latency",
            fix="give a run that was searched without --workload",
        )
    base = study.baseline
    if base.measurement is None:
        raise BadData(
            f"{study.root} holds no measured baseline", fix="run `ortune optimize` again"
        )
    last = {t.key: t for t in study.trials}
    kept = {key: (t, t.ratio) for key, t in last.items() if t.ratio and study.accepts(t)}
    shown = {t.key for t in (*study.front(), study.best)}
    shown |= {key for key, (t, _) in kept.items() if not t.plan.recipe.steps}
    shown -= {base.key}
    rest = sorted((kept[key] for key in kept if key in shown), key=lambda one: one[1].value)
    inference_s = median(base.measurement.latency_ns) / 1e9
    samples = max(1, workload.batch)
    options = [ServingOption(str(base.plan), inference_s, _ONE, samples)]
    for t, ratio in rest:
        accuracy = str(t.score.verdict or "") if t.score else ""
        sure = not study.too_noisy and t.part == "final"
        seconds = inference_s * ratio.value
        option = ServingOption(
            str(t.plan), seconds, ratio, samples, accuracy=accuracy, confirmed=sure
        )
        options.append(option)
    return Priced(
        tuple(options),
        (Path(study.job.model).name, str(base.plan.backend)),
        chosen="" if study.best.key == base.key else str(study.best.plan),
        tuning_s=sum(t.seconds for t in study.trials),
        notes=(_NOISY.format(study.root),) if study.too_noisy else (),
    )


def of_bench(found: Mapping[str, Any], source: Path) -> Priced:
    """Offer every row that ran; a row's latency is the first one's median times its ratio.

    Of models with the user's frame around them the whole frames are offered.
    """
    pairs = zip(found["rows"], found.get("ratios") or [None] * len(found["rows"]), strict=False)
    try:
        live = [(row, r) for row, r in pairs if not row.get("error") and not row.get("again")]
        whole = [(row, r) for row, r in live if row.get("measure") == PER_FRAME]
        live = whole or live
        options = [_row(row, ratio, live[0][0]) for row, ratio in live]
        noisy = bool((found.get("judgement") or {}).get("too_noisy"))
        measures = {str(row.get("measure", _LATENCY)) for row, _ in live}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"{source} cannot be read as rows of a bench: {type(error).__name__} {error}",
            fix="write it again with `ortune bench`",
        ) from None
    if measures - {_LATENCY, PER_FRAME}:
        raise BadData(
            f"{source} holds no latencies of single runs",
            fix="bench without --workload",
        )
    if not options:
        raise BadData(f"no row of {source} ran", fix="see its errors")
    first = live[0][0]
    return Priced(
        tuple(replace(option, confirmed=not noisy) for option in options),
        (Path(first["model"]).name, str(first["backend"])),
        notes=(
            *((_NOISY.format(source),) if noisy else ()),
            *((_WHOLE.format(source),) if whole else ()),
        ),
    )


def of_load_test(found: Mapping[str, Any], source: Path) -> Priced:
    """Offer the level that answers most: of those within the limit where there is one, else of
    those without an error. One run takes the time in which the whole server answers one.
    """
    try:
        rows = [row for row in found["rows"] if row["keeps_up"] and row["per_second"]]
        if found.get("slo"):
            rows = [] if found["kept"] is None else [found["rows"][found["kept"]]]
        best = max(rows, key=lambda row: float(row["per_second"]), default=None)
        if best is None:
            limit = f"keeps {found['slo']}" if found.get("slo") else "is without errors"
            raise BadData(f"no level of {source} {limit}", fix="load test it at lower levels")
        samples = max(1, int(best["batch"] or 1))
        name = f"{Path(best['model']).name} @ {best['backend']}, {best['workload']}"
        option = ServingOption(name, samples / float(best["per_second"]), None, samples)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"{source} cannot be read as levels of a load test: {type(error).__name__} {error}",
            fix="write it again with `ortune loadtest --json FILE.json`",
        ) from None
    note = (
        f"{source}: what its server as a whole answers at '{best['workload']}'; --processes "
        "counts such servers"
    )
    return Priced((option,), (str(source), _SERVED), notes=(note,))


def _row(
    row: Mapping[str, Any], ratio: Mapping[str, float] | None, first: Mapping[str, Any]
) -> ServingOption:
    """Read a row. The ratio holds within one batch."""
    samples, batch = (max(1, int(one.get("batch") or 1)) for one in (row, first))
    name = f"{Path(row['model']).name} @ {row['backend']}"
    name += f", batch {samples}" if samples > 1 else ""
    name += ", whole frames" if row.get("measure") == PER_FRAME else ""
    if ratio is None or samples != batch:
        return ServingOption(name, _typical(row), None, samples)
    held = Interval(ratio["value"], ratio["low"], ratio["high"])
    return ServingOption(name, _typical(first) * held.value, held, samples)


def _typical(row: Mapping[str, Any]) -> float:
    known = row.get("p50_ns")
    found = float(known if known is not None else median(row["latency_ns"])) / 1e9
    if not 0 < found < math.inf:
        raise ValueError(f"no latency is {found:g} s")
    return found
