"""Tables of coverage and power, of what int8 loses, of a detector in int8, of all operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tables.markdown import interval, percent, table, where

Results = Mapping[str, Any]
KINDS = {
    "share": "a share of the samples",
    "right": "right or wrong",
    "mean": "a mean of bounded scores",
    "selection": "the choice among 30 plans",
}


def coverage(results: Results) -> str:
    """Return for each kind of metric how often anything outside was called proved, at most."""
    rows = []
    for part, name in KINDS.items():
        mine = [row for row in results["rows"] if row["part"] == part]
        if not mine:
            continue
        worst = max(mine, key=lambda row: row["proved"] / row["draws"])
        fewest, most = min(row["n"] for row in mine), max(row["n"] for row in mine)
        rows.append(
            [name, len(mine), f"{fewest} to {most:,}", f"{sum(r['draws'] for r in mine):,}",
             percent(sum(r["proved"] for r in mine) / sum(r["draws"] for r in mine), 2),
             f"{percent(worst['proved'] / worst['draws'])}: {worst['name']}, {worst['n']} samples"]
        )  # fmt: skip
    head = ["kind", "cells", "samples", "draws", "falsely proved, all cells", "the worst cell"]
    never, rejected = results["never provable, proved"], results["cells rejected"]
    said = (
        f'Cells in which an exact binomial test rejects "at most {percent(results["error"], 0)}"'
        f" (Bonferroni over {results['cells']} cells): {', '.join(rejected) or 'none'}. Of perfect"
        f" answers by metrics without a test {never} were called proved."
    )
    return f"{table(head, rows)}\n\n{said}"


def power(results: Results) -> str:
    """Return how often plans inside their budget are proved, at every other number of samples."""
    mine = [row for row in results["rows"] if row["part"] == "power"]
    counts = sorted({row["n"] for row in mine})[::2]
    rows = []
    for name in dict.fromkeys(row["name"] for row in mine):
        by_count = {row["n"]: row for row in mine if row["name"] == name}
        found = [by_count.get(count) for count in counts]
        shares = [row and percent(row["proved"] / row["draws"], 0) for row in found]
        rows.append([name, *shares])
    head = ["plans inside their budget", *(f"{count:,} samples" for count in counts)]
    return table(head, rows)


def handed_out(results: Results) -> str:
    """Return how often a search hands out a plan where all are outside, and how often proved."""
    mine = [r for r in results["rows"] if r["part"] == "handed out" and r["outside"]]
    found = results["handed out"]
    head = "every plan misses the budget"
    rejected = ", ".join(found["cells rejected"]) or "none"
    said = (
        f"All {len(mine)} cells, with other numbers of samples and plans too, have"
        f" {min(r['draws'] for r in mine)} to {max(r['draws'] for r in mine)} searches each; the"
        f" largest share is {percent(found['largest share'])}. Cells in which an exact binomial"
        f' test (Bonferroni) rejects "at most {percent(found["error"], 0)}": {rejected}.'
    )
    return f"{_searches(mine, head, 'handed out', 'proved')}\n\n{said}"


def offered(results: Results) -> str:
    """Return how often the fastest plan is handed out where it alone is inside."""
    mine = [r for r in results["rows"] if r["part"] == "handed out" and not r["outside"]]
    return _searches(mine, "only the fastest plan meets the budget", "fastest")


def _searches(rows: Sequence[Results], head: str, key: str, beside: str = "") -> str:
    """Return a row a case, with cells of one and of 30 plans for two of the numbers of samples."""
    every = sorted({row["n"] for row in rows})
    counts = every[2::2] or every
    ends = min(row["plans"] for row in rows), max(row["plans"] for row in rows)
    by_cell = {(_case(row), row["n"], row["plans"]): row for row in rows}
    lines = []
    for case in dict.fromkeys(map(_case, rows)):
        cells = [by_cell.get((case, count, plans)) for plans in ends for count in counts]
        shares = [
            ""
            if cell is None
            else percent(cell[key] / cell["draws"], 0)
            + (f" ({percent(cell[beside] / cell['draws'], 0)})" if beside else "")
            for cell in cells
        ]
        lines.append([case, *shares])
    said = [f"{plans} plan{'s' * (plans > 1)}" for plans in ends]
    return table([head, *(f"{one}, {count:,} samples" for one in said for count in counts)], lines)


def _case(row: Results) -> str:
    return str(row["name"]).rpartition(", ")[0]


def dead_outputs(results: Results) -> str:
    """Return by how many dB what is dead or swapped follows the original, and what passed."""
    rows = []
    for model in dict.fromkeys(row["model"] for row in results["dead"]):
        mine = [row for row in results["dead"] if row["model"] == model]
        cases = ", ".join(f"{row['dead']} {row['group, dB']:.1f}" for row in mine)
        rows.append([model, cases])
    passed = sum(row["verdict"] != "fails" for row in results["dead"])
    said = (
        f"{len(results['dead'])} changes, {results['samples']} samples each: {passed} proved,"
        " likely or undecided."
    )
    return f"{table(['model', 'dead or swapped, dB'], rows)}\n\n{said}"


def wrong_optimizers(results: Results) -> str:
    """Return in which releases an optimizer is wrong, how, and which the comparison names."""
    rows = []
    for row in results["rows"]:
        found = {name: cell for name, cell in row["releases"].items() if cell["named"] != []}
        if not found:
            continue
        releases = "all" if len(found) == len(row["releases"]) else ", ".join(sorted(found))
        cell = next(iter(found.values()))
        outcome = cell["outcome"] + (f", {cell['dB']:.1f} dB" if cell["dB"] is not None else "")
        named = ", ".join(f"`{name}`" for name in cell["named"] or ["all"])
        rows.append([f"`{row['model']}`" if "(" in row["model"] else row["model"]])
        rows[-1] += [releases, outcome, named]
    releases = ", ".join(sorted(results["rows"][0]["releases"]))
    named = {
        name
        for row in results["rows"]
        for cell in row["releases"].values()
        for name in cell["named"] or ()
    }
    said = f"Releases {releases}: {len(named)} optimizers named."
    return f"{table(['model', 'release', 'with it', 'named'], rows)}\n\n{said}"


def noisy_outputs(results: Results) -> str:
    """Return the verdicts on noise of several sizes, with what decoded answers make of it."""
    heads = [
        f"noise {percent(cell['noise'], 0)}{', bfloat16' if cell['rounded'] else ''}"
        for cell in results["noisy"][0]["cells"]
    ]
    rows = []
    for row in results["noisy"]:
        cells = [row["model"], f"`{row['budget'].partition('(')[0]}`"]
        for cell in row["cells"]:
            alike = cell["decoded alike"]
            share = 1 if alike is None else alike / results["samples"]
            kept = "" if share == 1 else f", {percent(share, 0)} alike"
            cells.append(f"{cell['verdict']}, {cell['group, dB']:.0f} dB{kept}")
        rows.append(cells)
    return table(["model", "budget", *heads], rows)


def derived_budgets(results: Results) -> str:
    """Return what searches by derived budgets accepted and refused, and what that loses."""
    rows = []
    for name, case in results["cases"].items():
        budget = f"`{case['budget'].partition('(')[0]}`"
        said = [
            f"{plan['plan']}: {plan['verdict']}, {100 * plan['lost']:.1f}"
            for plan in case["plans"]
        ]
        if said:
            rows.append([name, case["samples"], budget, "; ".join(said)])
    none = ", ".join(name for name, case in results["cases"].items() if not case["plans"])
    head = ["model", "samples", "budget", "plans: verdict, points lost by labels"]
    return f"{where(results)}\n\n{table(head, rows)}\n\nNo plan was judged: {none or '-'}."


def lost(results: Results) -> str:
    """Return what int8 loses: of each tool the first recipe and the one that scores best."""
    rows = []
    for name, case in results["cases"].items():
        float_score = case["score"]
        rows.append([name, "", f"float: {case['measure']}", f"{float_score:.4f}", "", "", "", ""])
        for ours in (True, False):
            rows += [
                ["", row["tool"], f"`{row['recipe']}`", *_figures(row, float_score)]
                for row in _shown(case["rows"], ours=ours)
            ]
    head = ["model", "tool", "recipe", "score", "lost", "SNR, dB", "size", "latency"]
    return f"{where(results)}\n\n{table(head, rows)}"


def _shown(rows: Sequence[Results], *, ours: bool) -> list[Results]:
    """Return the first file of ortune or of the others, and the best one where it is another."""
    first = next((row for row in rows if (row["tool"] == "ortune") == ours), None)
    both = [row for row in (first, best(rows, ours=ours)) if row is not None]
    return both[:1] if both[:1] == both[1:] else both


def _figures(row: Results, float_score: float) -> list[str]:
    if "error" in row:
        return [row["error"], "", "", "", ""]
    fallen = f"{100 * (float_score - row['score']):+.2f} points".replace("+", "")
    ratio = interval(row["ratio"]) if "ratio" in row else "not timed"
    return [f"{row['score']:.4f}", fallen, f"{row['snr']:.1f}", percent(row["size"], 0), ratio]


def best(rows: Sequence[Results], *, ours: bool) -> Results | None:
    """Return ortune's file that scores best, or the others'; of equals the least noisy one."""
    own = [row for row in rows if (row["tool"] == "ortune") == ours and "error" not in row]
    return max(own, key=lambda row: (row["score"], row["snr"]), default=None)


def detector(results: Results) -> str:
    """Return what each int8 file of the text detector scores, and its size."""
    rows = []
    for row in results["rows"]:
        name = row["recipe"] if row["by"] != "ortune" else f"`{row['recipe']}`"
        if "error" in row:
            rows.append(
                [
                    row["by"],
                    name,
                    None,
                    None,
                    None,
                    None,
                    f"none that loads: {row['error'].partition(':')[0]}",
                ]
            )
            continue
        change = (
            None if not row["by"] else f"{100 * (row['map'] - results['rows'][0]['map']):+.2f}"
        )
        verdict = row["verdict"] if row["by"] else None
        rows.append(
            [row["by"], name, f"{row['map']:.4f}", change, f"{row['map50']:.4f}",
             f"{row['bytes'] / 1e6:.2f}", verdict]
        )  # fmt: skip
    head = ["made by", "recipe", "map", "points", "map(iou=0.5)", "MB", "within a point"]
    told = f"{results['pages']} pages with {results['boxes']} lines of text; no page calibrated."
    return f"{told}\n\n{table(head, rows)}"


def operators(results: Results) -> str:
    """Return how often each command was right on models of one operator, or refused."""
    rows = []
    for part, commands in results["counts"].items():
        for command, ends in commands.items():
            other = ends.get("other", 0)
            cells = [ends.get(word, 0) for word in ("right", "refused", "not judged")]
            rows.append([part, f"`{command}`", sum(ends.values()), *cells, other])
    head = ["models", "command", "tried", "right", "refused in two lines",
            "does not run at the start", "anything else"]  # fmt: skip
    named = "; ".join(f"`{name}` ({why})" for name, why in results["not built"].items())
    return f"{table(head, rows)}\n\nNo model was built of: {named or 'none'}."
