"""Lines of Markdown tables, and figures as they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; None is an empty cell."""
    lines = [line(head), "|" + "---|" * len(head)]
    return "\n".join(lines + [line(row) for row in rows])


def line(cells: Iterable[Any]) -> str:
    """Return one row."""
    shown = ("" if cell is None else str(cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(shown)} |"


def interval(found: Mapping[str, float] | Sequence[float] | None, digits: int = 3) -> str:
    """Return an estimate with its interval."""
    if found is None:
        return ""
    ends = (
        found if not isinstance(found, Mapping) else [found[k] for k in ("value", "low", "high")]
    )
    value, low, high = (f"{one:.{digits}f}" for one in ends)
    return f"{value} [{low}, {high}]"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent."""
    return "" if share is None else f"{100 * share:.{digits}f} %"


def where(results: Mapping[str, Any]) -> str:
    """Say on what was measured: the CPU, its vector units and the versions that matter."""
    about, versions = results["machine"], results["versions"]
    sets = [one for one in about["instruction sets"].split() if one != "avx2"]
    runtimes = [
        f"{name} {versions[name]}" for name in ("onnxruntime", "openvino") if name in versions
    ]
    units = f" ({', '.join(sets)})" if sets else ""
    count = about["effective cpus"]
    cpus = f"{count} CPU{'s' * (str(count) != '1')}"
    return f"{about['cpu']}{units}, {cpus}; {', '.join(runtimes)}."
