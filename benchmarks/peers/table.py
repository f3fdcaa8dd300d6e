"""The tables of the documentation, from the results alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.peers.making import TOOLS

BEGIN, END = "<!-- written by benchmarks.peers -->", "<!-- end -->"
_SHORT = {"benchmarks.sentences:cosine": "sentence cosine"}


def fill(page: str, results: Mapping[str, Any]) -> str:
    """Return the page with everything between the two marks written anew.

    Raises:
        ValueError: The page has no marks.
    """
    before, found, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{tables(results)}\n{END}{after}"


def tables(results: Mapping[str, Any]) -> str:
    """Return one table of the environments and one a model, fastest row first."""
    parts = [_installs(results)]
    for name, case in results["cases"].items():
        parts.append(f"### {name}\n\n{_heading(case)}\n\n{_rows(case)}\n\n{standing(case)}")
    return "\n\n".join(parts)


def standing(case: Mapping[str, Any]) -> str:
    """Say who is the fastest within each budget: ortune on the CPU provider beside the peers."""
    lines = []
    for budget in case["budgets"]:
        holding = [row for row in _timed(case) if budget in row["holds"] and _on_cpu(row)]
        own = _fastest(row for row in holding if row["tool"] == "ortune")
        peer = _fastest(row for row in holding if row["tool"] not in ("", "ortune"))
        if own is None or peer is None:
            who = "no peer's file" if peer is None else "ortune found nothing that"
            lines.append(f"`{_short(budget)}` on the CPU provider: {who} holds it.")
            continue
        lead = own["ratio"]["value"] / peer["ratio"]["value"]
        noise = "" if _apart(own["ratio"], peer["ratio"]) else ", inside the noise"
        lines.append(
            f"`{_short(budget)}` on the CPU provider: ortune {own['ratio']['value']:.3f}, the best"
            f" peer {peer['ratio']['value']:.3f} ({TOOLS[peer['tool']]}: {peer['recipe']}). "
            f"ortune takes {lead:.2f} of its time{noise}."
        )
    return "\n".join(lines)


def _installs(results: Mapping[str, Any]) -> str:
    versions = {
        row["tool"]: row["version"]
        for case in results["cases"].values()
        for row in case["rows"]
        if row.get("version")
    }
    lines = ["| tool | version | installed in | on disk |", "|---|---|---|---|"]
    for tool, about in results["tools"].items():
        cells = [TOOLS[tool], versions.get(tool, "")]
        cells += [about["error"], ""] if about["error"] else [
            f"{about['install_s']:.0f} s", f"{about['bytes'] / 1e6:,.0f} MB"
        ]  # fmt: skip
        lines.append(_line(cells))
    return "\n".join(lines)


def _heading(case: Mapping[str, Any]) -> str:
    budgets = ", ".join(f"`{_short(budget)}`" for budget in case["budgets"])
    equal = (case["self_check"] or {}).get("ratio")
    said = f" The original beside itself: {_interval(equal)}." if equal else ""
    readings = case["noise"]  # results of before name it otherwise
    before = readings.get("runs disturbed by neighbours")
    waits = readings.get("runs that waited for a CPU", before)
    said += f" Runs that waited for a CPU: {waits}." if waits else ""
    noisy = (
        " **The machine was too noisy for a verdict.**" if case["judgement"]["too_noisy"] else ""
    )
    return f"Budgets: {budgets}.{said}{noisy}"


def _rows(case: Mapping[str, Any]) -> str:
    timed = sorted(_timed(case), key=lambda row: float(row["ratio"]["value"]))
    original = next((row["size"] for row in timed if not row["tool"]), 0)
    metrics = list(dict.fromkeys(name for row in timed for name in row["scores"]))
    head = ["made by", "recipe", "ratio", *map(_metric, metrics), "MB", "CPU s", "holds"]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in timed:
        scores = [_number(row["scores"].get(name)) for name in metrics]
        size = f"{row['size'] / 1e6:.1f}"
        if original and row["tool"]:
            size += f" ({row['size'] / original:.0%})"
        seconds = f"{row['cpu_s']:.0f}" if row.get("cpu_s") else ""
        every = len(row["holds"]) == len(case["budgets"])
        holds = "yes" if every else "in part" if row["holds"] else ""
        cells = [_who(row), _recipe(row), _interval(row["ratio"]), *scores, size, seconds, holds]
        lines.append(_line(cells))
    for row in case["rows"]:
        if row.get("error"):
            blank = [""] * (len(head) - 3)
            lines.append(_line([_who(row), _recipe(row), row["error"], *blank]))
    return "\n".join(lines)


def _timed(case: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in case["rows"] if row.get("ratio") and not row.get("error")]


def _fastest(rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return min(rows, key=lambda row: float(row["ratio"]["value"]), default=None)


def _on_cpu(row: Mapping[str, Any]) -> bool:
    return str(row["backend"]).startswith("cpu")


def _apart(one: Mapping[str, float], two: Mapping[str, float]) -> bool:
    return one["high"] < two["low"] or two["high"] < one["low"]


def _who(row: Mapping[str, Any]) -> str:
    tool = row["tool"]
    return "**ortune**" if tool == "ortune" else TOOLS.get(tool, "")


def _recipe(row: Mapping[str, Any]) -> str:
    if row["tool"] == "ortune":
        return f"`{row['recipe']}`"
    note = str(row.get("note", "")).partition(" (")[0]
    note = f" ({note})" if note not in ("", row["recipe"]) else ""
    on = "" if not row.get("backend") or _on_cpu(row) else ", run by OpenVINO"
    return f"{row['recipe']}{note}{on}"


def _short(budget: str) -> str:
    for name, short in _SHORT.items():
        budget = budget.replace(name, short)
    return budget


def _metric(name: str) -> str:
    bare = name.removeprefix("function(path=").removesuffix(")")
    return _SHORT.get(bare, bare)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _interval(ratio: Mapping[str, float]) -> str:
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
