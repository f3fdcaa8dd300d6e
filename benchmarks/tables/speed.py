"""Tables of the main job, of A/A pairs, of ratios measured again and of the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.speed.budgets import SHAPES
from benchmarks.speed.race import direct
from benchmarks.tables.markdown import interval, percent, table, where
from ortune.core.trial import Interval

LABELS = {"all backends": "budget", "cpu": "cpu_budget"}
SHOWN = {"benchmarks.sentences:cosine": "sentence cosine"}
Case = Mapping[str, Any]
Row = Mapping[str, Any]


def own(case: Case, label: str) -> Row | None:
    """Return the row of what ortune found, on all backends or on the CPU provider alone."""
    rows = _timed(case)
    return next((row for row in rows if row["name"].startswith(f"ortune, {label}")), None)


def rival(case: Case, label: str) -> Row | None:
    """Return the best contestant within the budget, the original included."""
    budget = case[LABELS[label]]
    found = [row for row in _timed(case) if not row["name"].startswith("ortune")]
    found = [row for row in found if budget in row["holds"]]
    if label == "cpu":
        found = [row for row in found if row["backend"].startswith("cpu")]
    return min(found, key=lambda row: float(row["ratio"]["value"]), default=None)


def standing(case: Case, label: str) -> Interval | None:
    """Return ortune's ratio over the best contestant's, turn by turn where both raced."""
    mine, best = own(case, label), rival(case, label)
    if mine is None or best is None or not case.get("attempts"):
        return None
    blocks = case["attempts"][-1]["blocks"]
    if best["name"] == "original":
        return Interval(*(mine["ratio"][k] for k in ("value", "low", "high")))
    if mine["name"] not in blocks or best["name"] not in blocks:
        return None
    return direct(blocks[mine["name"]], blocks[best["name"]])


def _timed(case: Case) -> list[Row]:
    return [row for row in case["rows"] if row.get("ratio") and not row.get("error")]


def budget(text: str) -> str:
    """Return a budget as the tables spell it."""
    for name, short in SHOWN.items():
        text = text.replace(name, short)
    return f"`{text}`"


def main_job(results: Mapping[str, Any]) -> str:
    """Return one row a model and a choice of backends."""
    rows: list[list[Any]] = []
    for name, case in results["cases"].items():
        for label, key in LABELS.items():
            mine, best = own(case, label), rival(case, label)
            known = SHAPES[name].best_known if label == "all backends" else None
            rows.append(
                [
                    f"{name}, {label}: {budget(case[key])}",
                    f"`{case['searches'][label]['plan']}`",
                    interval(mine["ratio"]) if mine else None,
                    best["name"] if best else None,
                    interval(best["ratio"]) if best else None,
                    _over(standing(case, label), mine, best),
                    None if known is None else f"{known:.2f}",
                ]
            )
    head = ["model and budget", "ortune: plan", "ratio", "best contestant within the budget"]
    head += ["ratio", "ortune over it", "best known with AMX"]
    return "\n\n".join([f"One thread of {where(results)}", table(head, rows), *_attempts(results)])


def _over(found: Interval | None, mine: Row | None, best: Row | None) -> str:
    if found is not None:
        return str(found)
    if mine is None or best is None:
        return ""
    return f"{mine['ratio']['value'] / best['ratio']['value']:.3f}"


def _attempts(results: Mapping[str, Any]) -> list[str]:
    """Say how many races each model took and which of them were too noisy."""
    said = []
    for name, case in results["cases"].items():
        noisy = [one["too_noisy"] for one in case.get("attempts", [])]
        if any(noisy):
            last = "the last one too" if noisy[-1] else "the last one is shown"
            said.append(f"{name}: {sum(noisy)} of {len(noisy)} races were too noisy, {last}.")
    return [" ".join(said)] if said else []


def aa_summary(results: Mapping[str, Any]) -> str:
    """Return what all cells say together."""
    noisy = f"{results['quiet verdicts too noisy']} of {results['quiet verdicts']}"
    claims = f"{results['claims between equals']} of {results['verdicts']}"
    rows = [
        ["equal models: claims at 99 % in five pairs", claims],
        ["equal models: claims in resampled fives, all cells",
         percent(results["resampled share of claims"], 2)],
        ["equal models: claims in resampled fives, the worst cell",
         percent(results["largest of a cell"])],
        ["twins 3 % slower called faster", results["twins called faster"]],
        ["quiet machine called too noisy for a verdict", noisy],
    ]  # fmt: skip
    return f"{where(results)}\n\n{table(['equal models and twins', ''], rows)}"


def aa_cells(results: Mapping[str, Any]) -> str:
    """Return one row a cell with twins, which are those of the quiet machine."""
    rows = []
    for cell in results.get("cells", []):
        found = cell.get("twins found in five pairs")
        if found is not None:
            name = f"{cell['model']}, {cell['threads']} thread{'s' * (cell['threads'] > 1)}"
            spreads = [percent(cell[key], 2) for key in ("half-width", "sd of a pair")]
            rows.append([name, *spreads, percent(found, 0)])
    head = ["quiet machine", "half-width of an interval", "standard deviation of a pair"]
    return table([*head, "3 % slower twin called slower"], rows)


def busy(results: Mapping[str, Any]) -> str:
    """Return one row a cell: what fives of its pairs say of what is so on a quiet machine."""
    rows = [
        [cell["cell"],
         " / ".join(percent(share, 0) for share in cell["waited"]),
         percent(cell["without an interval"], 0),
         percent(cell["claims between equals"]),
         percent(cell["holds the quiet value"], 0),
         percent(cell["claims more than is true"]),
         interval(cell["all pairs"])]
        for cell in results["cells"]
    ]  # fmt: skip
    head = [
        "neighbour, CPUs",
        "runs that waited",
        "no interval",
        "equal models: claims",
        "holds the quiet ratio",
        "claims more",
        "ratio by all pairs",
    ]
    quiet, pairs = interval(results["quiet value"]), results["cells"][0]["pairs"]
    said = f"{pairs} pairs a cell; the ratio on the quiet machine is {quiet}."
    return f"{where(results)} {said}\n\n{table(head, rows)}"


def uninterrupted(results: Mapping[str, Any]) -> str:
    """Return the ratio by turns beside that of uninterrupted loops."""
    rows = [
        [name.partition(",")[0], interval(one["turns"]), interval(one["loops"]),
         f"{100 * one['apart']:+.1f} %", "yes" if one["agree"] else "**no**"]
        for name, one in results.items() if name not in ("machine", "versions")
    ]  # fmt: skip
    head = ["model", "by turns", "uninterrupted loops", "apart", "agree"]
    return f"{where(results)}\n\n{table(head, rows)}"


def again(results: Mapping[str, Any]) -> str:
    """Return how often a bundle's ratio fell where the bundle said that it will."""
    rows = []
    for name, one in results.items():
        if name in ("machine", "versions"):
            continue
        rows.append(
            [name, interval(one["stated ratio"]),
             "-".join(f"{end:.3f}" for end in one["predicted"]),
             f"{one['inside']} of {one['measured again']} in {one['minutes']:.0f} min",
             f"{one['inside, beside a neighbour']} of {one['beside a neighbour']}"]
        )  # fmt: skip
    head = ["model", "stated", "predicted", "measured again inside", "beside a neighbour"]
    return f"{where(results)}\n\n{table(head, rows)}"
