"""Tables of sequences, buckets and OpenVINO's own API."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from benchmarks.tables.markdown import interval, table, where

Results = Mapping[str, Any]


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


def fuzzing(results: Mapping[str, Any]) -> str:
    """Return a row a target: its inputs, the places that broke, and those that still do."""
    rows = [
        [f"`{name}`", f"{one['done']:,}", one["seed"], len(one["found"]),
         sum(place["open"] for place in one["found"].values()),
         f"{one['slowest'][0]:.1f}", f"{one['largest'][0] / 1e6:.0f}"]
        for name, one in results.items()
    ]  # fmt: skip
    head = ["target", "inputs", "seed", "places that broke", "still do", "slowest, s", "most, MB"]
    return table(head, rows)


_COMPARED = {
    "bfloat16 with AMX": ("amx", "16 bits"),
    "NNCF with AMX": ("amx", "NNCF"),
    "NNCF with VNNI": ("vnni", "NNCF"),
    "NNCF with AVX2": ("avx2", "NNCF"),
    "float attention with VNNI": ("vnni", "float attention"),
}
"""Column -> the instruction set that OpenVINO is held to, and the file beside ours."""


def executed_int8(results: Results) -> str:
    """Return a row a model: each file's time over ours, and the two signal to noise ratios."""
    files = {(one["model"], one["units"], one["file"]): one for one in results["rows"]}
    models = dict.fromkeys(one["model"] for one in results["rows"])
    known = {(units, name) for _, units, name in files}
    compared = {
        title: (column, "to ours") for title, column in _COMPARED.items() if column in known
    }
    if all(_ON_TWO in row for row in results["rows"]):
        compared |= {
            f"{title}, two threads": (column, _ON_TWO) for title, (column, _) in compared.items()
        }
    cells = [
        [model, *(_describe(files, (model, *column), key) for column, key in compared.values())]
        for model in models
    ]
    means = [
        geometric_mean(
            [files[model, *column][key][0] for model in models if (model, *column) in files]
        )
        for column, key in compared.values()
    ]
    cells.append(["geometric mean", *(f"{mean:.2f}" for mean in means)])
    return f"{where(results)}\n\n{table(['model', *compared], cells)}"


def stock_int8(results: Results) -> str:
    """Return a row a model: float32 and the stock tool's file over ours, and the two ratios."""
    files = {(row["model"], row["file"]): row for row in results["rows"]}
    models = dict.fromkeys(row["model"] for row in results["rows"])
    cells = []
    for model in models:
        float_ratio, low, high = files[model, "float32"]["to ours"]
        stock_ratio, least, most = files[model, "stock"]["to ours"]
        decibels = [f"{files[model, label]['snr']:.1f} dB" for label in ("stock", "ours")]
        ratios = (
            f"{float_ratio:.2f} [{low:.2f}, {high:.2f}]",
            f"{stock_ratio:.2f} [{least:.2f}, {most:.2f}]",
        )
        cells.append([model, *ratios, *decibels])
    means = [
        geometric_mean([files[model, label]["to ours"][0] for model in models])
        for label in ("float32", "stock")
    ]
    cells.append(["geometric mean", *(f"{mean:.2f}" for mean in means), "", ""])
    head = ["model", "float32", "stock tool", "SNR of the stock tool's", "SNR of ours"]
    return f"{where(results)}\n\n{table(head, cells)}"


_ON_TWO = "to ours, two threads"


def _describe(
    files: Mapping[tuple[str, str, str], Any], place: tuple[str, str, str], key: str
) -> str:
    other = files.get(place)
    if other is None:
        return "-"
    middle, low, high = other[key]
    model, units, _ = place
    ours = files[model, units, "ours"]
    decibels = "" if key == _ON_TWO else f", {other['snr']:.1f} / {ours['snr']:.1f} dB"
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]{decibels}"
