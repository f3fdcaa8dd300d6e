"""Tables of the search: what it found of what there is, regions, and replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.speed.main_job import LABELS, OF_TABLE, SHORT
from benchmarks.speed.race import direct
from benchmarks.tables.markdown import interval, table, where
from benchmarks.tables.speed import budget, rival
from ortune.core.trial import Interval

Case = Mapping[str, Any]
Row = Mapping[str, Any]


def by_machine(results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the cases of each kind of CPU as results of their own."""
    kinds: dict[str, dict[str, Any]] = {}
    for name, case in results["cases"].items():
        about = case["machine"]
        kind = f"{about['cpu']} {about['instruction sets']}"
        one = kinds.setdefault(kind, {"machine": about, "versions": case["versions"], "cases": {}})
        one["cases"][name] = case
    yield from kinds.values()


def found(results: Mapping[str, Any]) -> str:
    """Return one row a job: how near the search came to the best that is known, in what time."""
    return "\n\n".join(_found(one) for one in by_machine(results))


def _found(results: Mapping[str, Any]) -> str:
    rows: list[list[Any]] = []
    over: dict[str, list[float]] = {"whole": [], "short": []}
    for name, case in results["cases"].items():
        mine, best = _own(case, LABELS[0]), best_known(case)
        short = _own(case, SHORT)
        whole, early = (_over(case, one, best) for one in (mine, short))
        for key, one in (("whole", whole), ("short", early)):
            over[key] += [] if one is None else [one.value]
        walls = [f"{case['searches'][label]['wall']:.0f}" for label in (LABELS[0], SHORT)]
        cells = [f"{name}: {budget(case['budget'])}", interval(mine["ratio"]) if mine else ""]
        cells += [best["name"] if best else ""]
        cells += [str(one or "") for one in (whole, early)]
        rows.append([*cells, ", ".join(walls)])
    means = [_geometric(one, 3) for one in over.values()]
    rows.append(["geometric mean", "", "", *means, ""])
    head = ["model and budget", "found in 3 minutes", "best known plan", "found over it"]
    head += ["found in 60 s over it", "seconds"]
    return f"One thread of {where(results)}\n\n{table(head, rows)}"


def unseen(results: Mapping[str, Any]) -> str:
    """Return one row a model: what searches found, over the best of others within the budget."""
    return "\n\n".join(_unseen(one) for one in by_machine(results))


def unseen_readme(results: Mapping[str, Any]) -> str:
    """Return how many models are ahead, level and behind, and one row a model."""
    return "\n\n".join(_unseen_readme(one) for one in by_machine(results))


def _unseen_readme(results: Mapping[str, Any]) -> str:
    rows: list[list[Any]] = []
    ratios: list[list[float]] = [[], []]
    stands: Counter[str] = Counter()
    label = list(next(iter(results["cases"].values()))["searches"])[-1]
    for name, case in results["cases"].items():
        mine, best = _own(case, label), rival(case, LABELS[0])
        if mine is None or best is None:
            continue
        ratio = _over(case, mine, best)
        stand = "level"
        if ratio is not None and not ratio.low <= 1 <= ratio.high:
            stand = "ahead" if ratio.high < 1 else "behind"
        stands[stand] += 1
        sides = [float(one["ratio"]["value"]) for one in (mine, best)]
        for side, value in zip(ratios, sides, strict=True):
            side.append(value)
        cells = [name.removesuffix(", all"), *(f"{value:.2f}" for value in sides)]
        rows.append([*cells, best["name"], f"{ratio or ''} {stand}".strip()])
    means = [_geometric(side, 2) for side in ratios]
    counts = ", ".join(f"{stand} on {stands[stand]}" for stand in ("ahead", "level", "behind"))
    head = ["model", "ortune", "best of the others", "which", "ortune over it"]
    shown = table(head, [*rows, ["geometric mean", *means, "", ""]])
    return f"Of {len(rows)} models ortune is {counts}. {where(results)}\n\n{shown}"


def _unseen(results: Mapping[str, Any]) -> str:
    rows: list[list[Any]] = []
    times = list(next(iter(results["cases"].values()))["searches"])
    over: dict[str, list[float]] = {label: [] for label in times}
    for name, case in results["cases"].items():
        best, cells = rival(case, LABELS[0]), []
        for label in times:
            ratio = _over(case, _own(case, label), best)
            over[label] += [] if ratio is None else [ratio.value]
            cells.append(str(ratio or ""))
        last = case["searches"][times[-1]]
        plan = f"`{last['recipe']} @ {last['on']}`"
        shown = f"{best['name']}, {interval(best['ratio'])}" if best else ""
        rows.append([name, shown, *cells, plan])
    means = [_geometric(one, 3) for one in over.values()]
    worst = [f"{max(one):.3f}" if one else "" for one in over.values()]
    rows += [["geometric mean", "", *means, ""], ["worst", "", *worst, ""]]
    head = ["model, threads", "best of the others, over the original"]
    head += [f"found {label}, over it" for label in times]
    return f"{where(results)}\n\n{table([*head, f'plan {times[-1]}'], rows)}"


def _geometric(values: Sequence[float], digits: int) -> str:
    """Return the geometric mean as it is shown; empty without values."""
    return f"{np.exp(np.log(values).mean()):.{digits}f}" if values else ""


def best_known(case: Case) -> Row | None:
    """Return the fastest racer within the budget that no search of the race proposed."""
    ours = [row for row in _raced(case) if row["name"].startswith(OF_TABLE)]
    hand = rival(case, LABELS[0])
    known = [row for row in (*ours, hand) if row is not None and case["budget"] in row["holds"]]
    return min(known, key=lambda row: float(row["ratio"]["value"]), default=None)


def _own(case: Case, label: str) -> Row | None:
    rows = _raced(case)
    return next((row for row in rows if row["name"].startswith(f"ortune, {label}:")), None)


def _raced(case: Case) -> Iterable[Row]:
    return [row for row in case["rows"] if row.get("ratio") and not row.get("error")]


def _over(case: Case, one: Row | None, other: Row | None) -> Interval | None:
    """Return one racer's time over another's, turn by turn; None where either did not race."""
    if one is None or other is None:
        return None
    blocks = case["attempts"][-1]["blocks"]
    if other["name"] == "original":
        return Interval(*(one["ratio"][key] for key in ("value", "low", "high")))
    if one["name"] not in blocks or other["name"] not in blocks:
        return None
    return direct(blocks[one["name"]], blocks[other["name"]])


def regions(results: Mapping[str, Any]) -> str:
    """Return one row a model: the plans found with regions and without, and one over the other."""
    return "\n\n".join(_regions(one) for one in by_machine(results))


def _regions(results: Mapping[str, Any]) -> str:
    rows, alike = [], []
    for name, case in results["cases"].items():
        model = f"{name.partition(',')[0]}: {budget(case['budget'])}"
        if not case["surveyed"]["surveys"]:
            alike.append(model)
            continue
        plans = [f"`{found['plan']}`" for found in case["searches"].values()]
        own = [found["ratio"] for found in case["searches"].values()]
        ratios = [interval(found) for found in case.get("ratios", {}).values() or own]
        rows.append(
            [
                model,
                *(text for pair in zip(plans, ratios, strict=True) for text in pair),
                interval(case.get("with over without")) or "the same plan",
            ]
        )
    head = ["model and budget", "with regions", "ratio", "without", "ratio", "with over without"]
    said = f"These searches measured no region: {', '.join(alike)}." if alike else ""
    parts = [f"One thread of {where(results)}", table(head, rows), said]
    return "\n\n".join(filter(None, parts))


def replayed(results: Mapping[str, Any]) -> str:
    """Return regrets: a row a model, a column a time limit and what the numbers are fitted to."""
    columns = [
        (f"{limit} s, fitted to {fit}", one)
        for fit, about in results["fitted to"].items()
        for limit, one in about["seconds"].items()
    ]
    rows: list[list[str]] = []
    for name, about in results["tables"].items():
        regrets = [f"{one['models'][name]['regret']:.3f}" for _, one in columns]
        rows.append([name, f"{about['ratio']:.3f}", *regrets])
    for label, key in (("geometric mean", "regret"), ("worst", "worst")):
        rows.append([label, "", *(f"{one[key]:.3f}" for _, one in columns)])
    late = [f"{one['wall over its limit']:+.0f} s" for _, one in columns]
    rows.append(["wall time over the limit, worst", "", *late])
    first = [one["first plan after"] for _, one in columns]
    shown = ["" if seconds is None else f"{seconds:.0f} s" for seconds in first]
    rows.append(["first plan on the screen, worst", "", *shown])
    wrongly = [f"{one['wrongly abandoned']} of {one['abandoned']}" for _, one in columns]
    rows.append(["given up wrongly", "", *wrongly])
    head = ["regret", "ratio of the best plan", *dict(columns)]
    return f"{where(results)}\n\n{table(head, rows)}"
