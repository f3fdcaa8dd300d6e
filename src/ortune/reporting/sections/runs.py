"""Every timed run: how long each took, and whether the machine was quiet meanwhile."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Chart, Heading, Line, Lines, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Burst, Trial
from ortune.measurement.arrivals.lanes import percentile
from ortune.reporting.sections.common.plans import BUSY, WAITED

_POINTS = 200
"""Of a curve and of a plot of runs, at most, so that a page stays small."""
_FEWEST = 20
_SHARES = (50, 90, 99)
_WAITS = (
    (WAITED, "did not wait", "once"),
    (BUSY, "waited for up to half of its time", "s1"),
    (float("inf"), "waited for more than half", "fails"),
)
"""Share of a run that its threads waited for a CPU, up to which it is called this."""


@dataclass(frozen=True)
class RunsSection(Section):
    """All runs of the winner's fresh pairs, in which original and winner took turns."""

    order: ClassVar[int] = 6
    columns: ClassVar[int] = 5

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield both distributions, then the original's runs in order, by how long they waited."""
        best, measure = study.best, f"{study.job.workload.measure}, ms"
        if best.key == study.baseline.key or best.measurement is None:
            timed = [trial for trial in study.trials if trial.measurement]
            yield from _plot_runs([b for t in timed for b in _list_bursts(t)], measure)
            return
        bursts = _list_bursts(best)
        sides = {
            "original": sorted(ns for burst in bursts for ns in burst.latency_ns),
            "winner": sorted(best.measurement.latency_ns),
        }
        if min(map(len, sides.values())) < _FEWEST:
            return
        yield Heading("Every timed run")
        lines = tuple(
            Line(name, _make_curve(ns), "win" if name == "winner" else "original")
            for name, ns in sides.items()
        )
        yield Lines(measure, "% of runs at most", lines, log_x=True)
        yield Table(
            ("", "runs", *(f"p{share}, ms" for share in _SHARES), "slowest, ms"),
            tuple(_make_row(name, ns) for name, ns in sides.items()),
        )
        yield from _plot_runs(bursts, measure)


def _list_bursts(trial: Trial) -> list[Burst]:
    """Return the original's bursts beside a trial."""
    pairs = trial.measurement.pairs if trial.measurement else ()
    return [block.baseline for pair in pairs for block in pair.blocks]


def _make_row(name: str, ns: Sequence[int]) -> tuple[str, ...]:
    figures = (say.format_milliseconds(percentile(ns, share)) for share in _SHARES)
    return (name, f"{len(ns):,}", *figures, say.format_milliseconds(ns[-1]))


def _make_curve(ns: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """Return the share of runs that took at most so many ms, in steps."""
    places = sorted({round(i * (len(ns) - 1) / (_POINTS - 1)) for i in range(_POINTS)})
    return tuple((ns[place] / 1e6, 100 * (place + 1) / len(ns)) for place in places)


def _plot_runs(bursts: Sequence[Burst], measure: str) -> Iterator[Block]:
    """Plot the original's runs in order: a drift or a neighbour is seen at once."""
    entries = [
        (ns / 1e6, waited)
        for burst in bursts
        for ns, waited in zip(burst.latency_ns, burst.waited, strict=False)
    ]
    if len(entries) < _FEWEST:
        return
    step = -(-len(entries) // (2 * _POINTS))
    rows = [
        {"run": index, "ms": ms, "kind": _name_wait(waited), "waited": share}
        for index, (ms, waited) in enumerate(entries)
        if index % step == 0
        for share in [100 * min(max(0.0, waited), 99.0)]
    ]
    kinds = [name for _, name, _ in _WAITS if any(row["kind"] == name for row in rows)]
    colours = {name: f"var(--{colour})" for _, name, colour in _WAITS}
    counts = [sum(_name_wait(waited) == name for _, waited in entries) for name in kinds]
    x = {"field": "run", "type": "quantitative", "title": "runs of the original, in order"}
    y = {"field": "ms", "type": "quantitative", "title": measure, "axis": {"tickCount": 5}}
    scale = {"domain": kinds, "range": [colours[name] for name in kinds]}
    legend = {"title": None, "columns": 1}
    tip = [{"field": "ms", "title": measure, "format": ".4~g"}]
    tip.append({"field": "waited", "title": "% waiting", "format": ".0f"})
    spec = {
        "description": "runs of the original in order, by how long they waited for a CPU",
        "height": 190,
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.75},
        "encoding": {
            "x": x,
            "y": {**y, "scale": {"type": "log", "nice": False}},
            "color": {"field": "kind", "type": "nominal", "scale": scale, "legend": legend},
            "tooltip": tip,
        },
    }
    cells = tuple((name, f"{n:,}") for name, n in zip(kinds, counts, strict=True))
    yield Heading("Was the machine quiet?")
    yield Chart(spec, Table(("runs of the original", "count"), cells))
    if step > 1:
        yield Text(f"One run in {step} is drawn; {say.format_count(len(entries), 'run')} in all.")


def _name_wait(waited: float) -> str:
    """Return the word for a share; what is no number, as in a stranger's run, is most."""
    return next((name for most, name, _ in _WAITS if waited <= most), _WAITS[-1][1])
