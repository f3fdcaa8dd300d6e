"""The table of the documentation, from the results alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.simplifiers.making import TOOLS

TITLE = "## Against other simplifiers"
BEGIN, END = "<!-- written by benchmarks.simplifiers -->", "<!-- end of simplifiers -->"


def fill(page: str, results: Mapping[str, Any]) -> str:
    """Return the page with what is between the marks written anew; the section is added if new."""
    if BEGIN not in page:
        page = f"{page.rstrip()}\n\n{TITLE}\n\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def table(results: Mapping[str, Any]) -> str:
    """Return one row a model: nodes and ratio of latency for each tool, then the sums."""
    heads = " | ".join(f"{tool} {_version(results, tool)}".strip() for tool in TOOLS)
    lines = [f"| model | nodes | {heads} |", "|---|---:|" + "---|" * len(TOOLS)]
    for name, case in results["cases"].items():
        rows = {row["tool"]: row for row in case["rows"]}
        cells = " | ".join(_cell(rows.get(tool)) for tool in TOOLS)
        lines.append(f"| {name} | {case['nodes']} | {cells} |")
    lines.append("| seconds, all models | | " + " | ".join(_sums(results)) + " |")
    lines.append("| peak memory | | " + " | ".join(_peaks(results)) + " |")
    lines.append("| broken files | | " + " | ".join(_broken(results)) + " |")
    skipped = [f"{name}: {why}" for name, why in results.get("skipped", {}).items()]
    return "\n".join([*lines, *(["", "Left out: " + "; ".join(skipped) + "."] * bool(skipped))])


def _cell(row: Mapping[str, Any] | None) -> str:
    """Nodes left, and the ratio to the original with its 99 % interval."""
    if row is None:
        return "-"
    if row["error"]:
        return f"**{row['error']}**"
    ratio = row.get("ratio")
    if not ratio:
        return f"{row['nodes']}, not timed" + f": {row['note']}" * bool(row["note"])
    return f"{row['nodes']}, {ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _rows(results: Mapping[str, Any], tool: str) -> list[Mapping[str, Any]]:
    return [r for case in results["cases"].values() for r in case["rows"] if r["tool"] == tool]


def _version(results: Mapping[str, Any], tool: str) -> str:
    return next((r["version"] for r in _rows(results, tool) if r["version"]), "")


def _sums(results: Mapping[str, Any]) -> list[str]:
    return [f"{sum(r['seconds'] for r in _rows(results, tool)):.1f}" for tool in TOOLS]


def _peaks(results: Mapping[str, Any]) -> list[str]:
    every = [max((r["peak_rss"] for r in _rows(results, tool)), default=0) for tool in TOOLS]
    return [f"{peak / 1e9:.2f} GB" for peak in every]


def _broken(results: Mapping[str, Any]) -> list[str]:
    return [str(sum(bool(r["error"]) for r in _rows(results, tool))) for tool in TOOLS]
