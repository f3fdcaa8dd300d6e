"""Tables of texts: how fast decoders write, what fewer bits cost, a sentence encoder, memory."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.tables.markdown import percent, table, where

_BESIDE = "builder int4, onnxruntime-genai"
"""Row that the others are compared with: the usual way to such a decoder."""


def generation(results: Mapping[str, Any]) -> str:
    """Return a row a decoder: medians over the rounds, and times over the usual way's.

    A ratio is of the same round; beside its median stand the least and the most of the rounds.
    """
    rows, asked = results["rows"], results["asked"]
    cells = []
    for name, row in rows.items():
        pairs = zip(row["rounds"], rows[_BESIDE]["rounds"], strict=True)
        ratios = sorted(ours["token_ns"] / usual["token_ns"] for ours, usual in pairs)
        span = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        cells.append(
            [
                name,
                f"{row['first_token_ns'] / 1e6:.0f} ms",
                f"{row['token_ns'] / 1e6:.1f} ms",
                f"{row['tokens_per_s']:.0f}",
                f"{row['peak_rss'] / 1e6:.0f}",
                "1" if name == _BESIDE else span,
            ]
        )
    head = ("decoder", "first token", "a later token", "tokens/s", "MB at most", "over the usual")
    text = (
        f"{asked['rounds']} rounds of fresh processes in turns, all threads, prompts of "
        f"{asked['prompt']} tokens and answers of {asked['tokens']}. {where(results)}"
    )
    return f"{table(head, cells)}\n\n{text}"


def perplexity(results: Mapping[str, Any]) -> str:
    """Return a row a file: perplexity on texts that were not trained on, and its change."""
    cells = []
    for name, row in results["rows"].items():
        change = row["change"]
        span = (
            change and f"{change['value']:+.2f} ({change['least']:+.2f} to {change['most']:+.2f})"
        )
        cells.append([name, f"{row['perplexity']:.1f}", span if name != "untrained" else ""])
    float32 = next(row["float32"] for row in results["rows"].values())
    cells.insert(1, ["float32, trained", f"{float32:.1f}", ""])
    head = ("decoder", "perplexity", "change, 90 %")
    return f"{table(head, cells)}\n\n{where(results)}"


def sentences(results: Mapping[str, Any]) -> str:
    """Return a row a file of a sentence encoder: what it keeps, and the time of ours over its."""
    judged, raced = results["judge"], results["race"]
    cells = []
    for name, row in judged.items():
        ratios = [
            _invert(raced[threads][name]["ratio"]) if name != "ortune" else "1"
            for threads in raced
        ]
        rank = f"{row['spearman']:.3f}"
        size = f"{results['sizes'][name] / 1e6:.0f}"
        cells.append([name, percent(row["inside"]), row["verdict"], rank, size, *ratios])
    found = results["found"]
    head = ("file", "inputs inside", "budget", "Spearman", "MB", "ours over it", "one thread")
    samples = next(iter(judged.values()))["samples"]
    text = (
        f"ortune: `{found['recipe']}` on `{found['on']}`, in {found['wall_s']} s; on its own "
        f"samples the budget was {found['verdict']}. Judged on {samples} pairs of articles that "
        f"it has not seen. Files in one row have the same bytes. Times: 5 fresh processes of "
        f"each, with 99 % intervals. {where(results)}"
    )
    return f"{table(head, cells)}\n\n{text}"


def _invert(ratio: Mapping[str, float]) -> str:
    value, low, high = (1 / ratio[key] for key in ("value", "high", "low"))
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def memory(results: Mapping[str, Any]) -> str:
    """Return a row a command, in times the file: all processes together, and the largest one."""
    cells = []
    for name, row in results["rows"].items():
        shown = (row["peak"], row["held"], max(one["pss"] for one in row["processes"]))
        cells.append(
            [name, f"{row['peak'] / 1e9:.1f}", *(f"{x / row['file']:.2f}" for x in shown)]
        )
    head = ("command", "GB at most", "times the file", "of it in no file", "largest process")
    search = results["rows"]["optimize"]
    size = search["file"]
    text = (
        f"A decoder of {size / 1e9:.1f} GB in float32. `optimize`: `{results['workload']}` on the "
        f"CPU, {search['texts']} texts, `--time {search['time']}`, in which {search['built']} "
        f"plan was built. {where(results)}"
    )
    return f"{table(head, cells)}\n\n{text}"
