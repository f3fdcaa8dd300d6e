"""Tables of the peers' race: who is first within the budget, and everybody's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.making import TOOLS
from benchmarks.speed.race import direct
from benchmarks.tables.markdown import interval, percent, table, where
from benchmarks.tables.speed import SHOWN, budget
from ortune.core.trial import Interval

OWN = "ortune"
BUSY = 0.2
"""CPUs of others from which the times to a result are told with them."""
KINDS = {"all backends": "", "cpu": "cpu"}
"""Choice of backends -> how theirs begin."""
Case = Mapping[str, Any]
Row = Mapping[str, Any]


def own(case: Case, label: str) -> Row | None:
    """Return the row of what ortune found, on all backends or on the CPU provider alone."""
    rows = (row for row in _timed(case) if row["tool"] == OWN)
    return next((row for row in rows if row["name"].startswith(f"{OWN}, {label}:")), None)


def rivals(case: Case, label: str) -> list[Row]:
    """Return the peers' files within the budget, the fastest first."""
    found = [
        row
        for row in _timed(case)
        if row["tool"] not in ("", OWN)
        and case["budget"] in row["holds"]
        and row["backend"].startswith(KINDS[label])
    ]
    return sorted(found, key=lambda row: float(row["ratio"]["value"]))


def fastest(case: Case, label: str) -> Row | None:
    """Return the fastest peer within the budget of those that raced, or by its pilot if none did.

    A recipe races under the faster of a runtime's hints: a pilot of the other tells nothing more.
    """
    found = rivals(case, label)
    return next((row for row in (*filter(_raced, found), *found)), None)


def over(case: Case, mine: Row, other: Row) -> Interval | None:
    """Return ortune's latency over a peer's, turn by turn; None where they did not race."""
    blocks = case["attempts"][-1]["blocks"] if case.get("attempts") else {}
    pair = [blocks.get(row["name"], ()) for row in (mine, other)]
    if not all(pair) or len(pair[0]) != len(pair[1]):
        return None
    return direct(*pair)


def place(case: Case, label: str) -> str:
    """Say where ortune stands within the budget: first, level, behind, or that nobody knows."""
    mine, others = own(case, label), rivals(case, label)
    if noisy(case):
        return "too noisy for a verdict"
    if mine is None or case["budget"] not in mine["holds"]:
        return "no plan within the budget"
    found = [over(case, mine, other) for other in others if _raced(other)]
    known = [one for one in found if one is not None]
    if any(one.low > 1 for one in known):
        return "behind"
    return "first" if all(one.high < 1 for one in known) else "level"


def noisy(case: Case) -> bool:
    """Return whether the last attempt gives no verdict."""
    return not case.get("attempts") or bool(case["attempts"][-1]["too_noisy"])


def beside(case: Case, label: str) -> list[str]:
    """Name the best score and the smallest file of peers as fast as ortune, where theirs win."""
    mine = own(case, label)
    if mine is None:
        return []
    found = [(other, over(case, mine, other)) for other in rivals(case, label)]
    fast = [other for other, ratio in found if ratio is not None and ratio.high >= 1]
    if not fast:
        return []
    scores, small = max(fast, key=_score), min(fast, key=lambda row: int(row["size"]))
    said = []
    if _score(scores) > _score(mine):
        said.append(f"{who(scores)} scores {_figure(_score(scores))}")
    if small["size"] < mine["size"]:
        said.append(f"{who(small)} has {_mb(small)} MB")
    return said


def peers_race(results: Mapping[str, Any]) -> str:
    """Return the standing of each model, and a table of all its files, the fastest first."""
    times = [f"{results[k]:.0f} s" for k in ("seconds", "stopped after")]
    about = f"A call had {times[0]}, and was stopped after {times[1]}."
    parts = [f"One thread of {where(results)} {about}", _standings(results)]
    for name, case in results["cases"].items():
        said = [f"**{name}**, {budget(case['budget'])}.", _attempts(case), _made(case)]
        parts.append(" ".join(filter(None, said)))
        parts.append(_files(case))
    return "\n\n".join([*parts, _installed(results)])


def _standings(results: Mapping[str, Any]) -> str:
    rows: list[list[Any]] = []
    for name, case in results["cases"].items():
        for label in KINDS:
            mine = own(case, label)
            best = fastest(case, label)
            both = None if mine is None or best is None else over(case, mine, best)
            rows.append(
                [
                    f"{name}, {label}",
                    interval(mine["ratio"]) if mine else None,
                    who(best) if best else "none within the budget",
                    interval(best["ratio"]) if best else None,
                    str(both) if both else None,
                    place(case, label),
                    "; ".join(beside(case, label)) or "none",
                ]
            )
    head = ["model, backends", "ortune", "fastest peer within the budget", "ratio"]
    head += ["ortune over it", "ortune is", "peers as fast and more accurate or smaller"]
    return table(head, rows)


def _files(case: Case) -> str:
    rows = sorted(_timed(case), key=lambda row: float(row["ratio"]["value"]))
    original = next((row["size"] for row in rows if not row["tool"]), None)
    metrics = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    head = ["made by", "ratio", *map(_metric, metrics), "MB", "time to result", "keeps the budget"]
    lines: list[list[Any]] = []
    for row in rows:
        share = f" ({percent(row['size'] / original, 0)})" if original and row["tool"] else ""
        pilot = f"about {row['ratio']['value']:.2f} (pilot)"
        scores = [_figure(row["scores"].get(name)) for name in metrics]
        lines.append(
            [
                who(row),
                (interval(row["ratio"]) if _raced(row) else pilot) if row["tool"] else "1",
                *scores,
                _mb(row) + share,
                _time(row),
                "yes" if case["budget"] in row["holds"] else "no",
            ]
        )
    for row in case["rows"]:
        if row["error"]:
            blank = [None] * len(metrics)
            lines.append([who(row), row["error"], *blank, None, _time(row), "no"])
    return table(head, lines)


def _installed(results: Mapping[str, Any]) -> str:
    """Return each tool's version and the size of its environment."""
    sizes: dict[str, int] = {}
    versions: dict[str, str] = {}
    for case in results["cases"].values():
        sizes |= {tool: about["bytes"] for tool, about in case.get("tools", {}).items()}
        versions |= {row["tool"]: row["version"] for row in case["rows"] if row.get("version")}
    rows = [
        [TOOLS[tool], versions.get(tool), f"{size / 1e6:,.0f} MB"] for tool, size in sizes.items()
    ]
    return table(["tool", "version", "its environment on disk"], rows)


def _attempts(case: Case) -> str:
    """Say how many races were too noisy, where any was, and whether the last one was."""
    attempts: Sequence[Mapping[str, Any]] = case.get("attempts", [])
    if not attempts:
        return "Not raced."
    bad = sum(bool(one["too_noisy"]) for one in attempts)
    last = "**the last one too: no verdict**" if attempts[-1]["too_noisy"] else "the last is shown"
    return f"{bad} of {len(attempts)} races were too noisy, {last}." if bad else ""


def _made(case: Case) -> str:
    """Say how busy the machine was while the slowest file was made, where it was."""
    most = max((float(row.get("others") or 0) for row in case["rows"]), default=0.0)
    return f"While files were made, others used up to {most:.1f} CPUs." if most >= BUSY else ""


def who(row: Row) -> str:
    """Return how a row is called: tool, recipe, and the runtime where it is not onnxruntime's."""
    on = "" if row["backend"].startswith("cpu") else f", run by `{row['backend']}`"
    if not row["tool"]:
        return "original"
    if row["tool"] == OWN:
        return f"**ortune** `{row['note']}`"
    note = f" ({row['note']})" if row.get("note") else ""
    return f"{TOOLS[row['tool']]}: {row['recipe']}{note}{on}"


def _timed(case: Case) -> list[Row]:
    return [row for row in case["rows"] if row.get("ratio") and not row["error"]]


def _raced(row: Row) -> bool:
    return bool(row.get("raced"))


def _score(row: Row) -> float:
    """Return the score by the budget's metric, which is the first."""
    return float(next(iter(row["scores"].values()), float("-inf")))


def _time(row: Row) -> str | None:
    return f"{row['seconds']:.0f} s" if row.get("seconds") else None


def _mb(row: Row) -> str:
    return f"{row['size'] / 1e6:.1f}"


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _metric(name: str) -> str:
    bare = name.removeprefix('function(path="').removesuffix('")')
    bare = bare.removeprefix("function(path=").removesuffix(")")
    return SHOWN.get(bare, bare).partition("(")[0]
