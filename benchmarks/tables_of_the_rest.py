"""Tables of ceilings, runtime settings, precisions, rewriting and buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import interval, percent, table, where

Results = Mapping[str, Any]


def ceilings(results: Results) -> str:
    """Return what profiling measures as the machine's ceilings beside independent loops."""
    rows = []
    for run in results["runs"]:
        threads = f"{run['threads']} thread{'s' * (run['threads'] > 1)}"
        for kind, rival in run["compared_with"].items():
            found, other = run["ceilings"][kind], run["independent"][rival]
            apart = f"{100 * run['apart'][kind]:+.1f} %"
            rows.append(
                [f"{kind}, {threads}", f"{found / 1e9:.1f}", f"{other / 1e9:.1f} ({rival})", apart]
            )
    head = ["10^9 a second", "ceiling", "fastest independent loop", "apart"]
    within = f"Wanted: within {percent(results['within'], 0)}."
    return f"{where(results)} {within}\n\n{table(head, rows)}"


def tune(results: Results) -> str:
    """Return what `tune` found beside a neighbour."""
    rows = []
    for name, one in results.items():
        if not isinstance(one, Mapping) or "the best over one thread" not in one:
            continue
        rows.append(
            [name.partition(",")[0], f"`{one['best']}`", interval(one["ratio"]),
             interval(one["the best over two threads as they come"]),
             f"{one['cpu_ratio']['value']:.2f}",
             interval(one["two threads as they come over one"], 2),
             interval(one["the best over one thread"], 2)]
        )  # fmt: skip
    head = ["two threads beside a busy neighbour", "found", "search's own final pairs"]
    head += ["over two threads as they come, timed apart", "CPU time"]
    head += ["two as they come over one thread", "the best over one thread"]
    return f"{where(results)} Searches of {results['seconds']} s.\n\n{table(head, rows)}"


def gates(results: Results) -> str:
    """Return what flushing denormal weights brings."""
    one = results["denormal weights"]
    found = [interval(one[k]) for k in ("ratio", "flushing over not")]
    row = ["`benchmarks/gates.py`", f"`{one['best']}`", *found]
    row.append(interval(one["the same with ordinary weights"]))
    head = ["gates with denormal weights, one thread", "found", "ratio", "timed apart"]
    return table([*head, "with ordinary weights"], [row])


def precision(results: Results) -> str:
    """Return one row a recipe."""
    rows = []
    for name, case in results["cases"].items():
        for row in case["rows"]:
            if "steps" not in row or "error" in row:
                continue
            steps = " ".join(_quoted(step) for step in row["steps"] if step != "simplify")
            rows.append(
                [name, f"`{steps}`", interval(row.get("ratio")), _answers(case, row),
                 percent(row["size"], 0), percent(row["integer_share"], 0)]
            )  # fmt: skip
    head = ["model", "steps behind `simplify`", "ratio", "answers", "size", "integers"]
    return f"{where(results)}\n\n{table(head, rows)}"


def sequences(results: Results) -> str:
    """Return one row a recipe and kind of states that it was calibrated on."""
    rows = []
    for name, case in results["cases"].items():
        for row in case["rows"]:
            steps = " ".join(_quoted(step) for step in row["steps"] if step != "simplify")
            second = f"{case['measure']}: {case['original']:.4f} to {row['second']:.4f}"
            rows.append([name, f"`{steps}`", row["states"], f"{row['snr']:.1f} dB", second])
    head = ["model", "steps behind `simplify`", "calibrated on", "SNR", "task"]
    return f"{where(results)}\n\n{table(head, rows)}"


def gains(results: Results) -> str:
    """Return the races of rewritten models against the first of each."""
    rows = []
    for race in results["rows"]:
        for k, one in enumerate(race.get("results", [])):
            name = "" if k else race["row"] + " (too noisy)" * bool(race.get("too_noisy"))
            rows.append([name, one["name"], one["nodes"], interval(one["ratio"]) if k else "1"])
    return f"{where(results)}\n\n{table(['race', 'entry', 'nodes', 'ratio'], rows)}"


def buckets(results: Results) -> str:
    """Return what cutting padding in buckets was predicted to bring, and what it brought."""
    backends = [
        name for name, one in results.items() if isinstance(one, Mapping) and "buckets" in one
    ]
    rows = []
    for name, first in results[backends[0]]["buckets"].items():
        count = f"{len(first['lengths'])}, one a length" if name == "all" else name
        cells = [count, f"{first['positions']:.3f}"]
        for backend in backends:
            one = results[backend]["buckets"][name]
            cells += [f"{one['predicted']:.3f}", interval(one["measured"])]
        rows.append(cells)
    head = ["buckets", "positions left"]
    for backend in backends:
        short = backend.partition("(")[0]
        head += ["predicted from latencies", f"measured, `{short}`"]
    return f"{where(results)}\n\n{table(head, rows)}"


def openvino_overhead(results: Results) -> str:
    """Return what the engine costs beside OpenVINO's own API: a row a model and way to call it."""
    rows = [
        [
            one["model"],
            one["own API"],
            f"{one['own_ns'] / 1e6:.2f} ms",
            f"{one['ortune_ns'] / 1e6:.2f} ms",
            interval(one["ratio"]),
        ]
        for one in results["rows"]
    ]
    head = ["model", "own API", "own API takes", "ortune takes", "ratio"]
    return f"{where(results)}\n\n{table(head, rows)}"


def _answers(case: Results, row: Results) -> str:
    """Return a score; where the original's is not the best that can be, both."""
    if "dB" in case["measure"]:
        return f"{row['score']:.1f} dB"
    before = case["rows"][0]["score"]
    if before >= 1 - 1e-9:
        return f"{row['score']:.4f}"
    return f"{before:.3f} to {row['score']:.3f}"


def _quoted(step: str) -> str:
    return f'"{step}"' if "(" in step else step
