"""ortune's exact transforms against onnxslim, onnxsim and onnxscript's optimizer.

    python -m benchmarks.simplifiers [--model NAME ...] [--file MODEL.onnx ...] [--seconds 60]

Each tool runs with its defaults in a process of its own, the peers in an environment under
``.cache/peers/simplifiers``; the files that are right (valid, and outputs at 100 dB on real
samples) are timed beside the original in one interleaved race, onnxruntime's CPU provider, one
thread. Models are those of the real jobs, the benchmark shapes and the old exporter's; what is not
installed is named. Results: ``benchmarks/results/simplifiers.json``, and from it the table of
``docs/rewriting.md``. An idle machine and about half an hour; ``--table`` only writes the table.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.options import Case
from benchmarks.peers.environments import Environment, environment
from benchmarks.rewrites import every_case, outputs, samples
from benchmarks.simplifiers.making import TOOLS, Made, count, make
from benchmarks.simplifiers.table import fill
from ortune.analysis.benchmark.bench import race
from ortune.backends.cpu import Cpu
from ortune.core.plugins import codec
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import machine, versions

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "simplifiers.json"
PAGE = ROOT / "docs" / "rewriting.md"
CPU = Cpu(threads=1)
SAMPLES_OF = {
    "efficientnet_lite0, old exporter": "efficientnet_lite0",
    "minilm, old exporter": "minilm",
}
"""Model of another exporter -> the real job whose samples it takes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--file", nargs="+", type=Path, default=[], metavar="MODEL.onnx")
    parser.add_argument("--seconds", type=float, default=60, help="timing of one model")
    parser.add_argument("--sets", type=int, default=5, help="sets of fresh processes")
    parser.add_argument("--table", action="store_true", help="write the page from the results")
    asked = parser.parse_args()
    if not asked.table:
        _measure(asked)
    page = PAGE.read_text() if PAGE.is_file() else "# Rewriting a model\n"
    PAGE.write_text(fill(page, json.loads(RESULTS.read_text())))


def _measure(asked: argparse.Namespace) -> None:
    env = environment("simplifiers")
    known: dict[str, Any] = {"cases": {}}
    if RESULTS.is_file():
        known = json.loads(RESULTS.read_text())
    skipped: dict[str, str] = {}
    with TemporaryDirectory(prefix="ortune-simplifiers-") as temporary:
        for case in _cases(Path(temporary), asked.file, skipped):
            if asked.model and case.name not in asked.model:
                continue
            known["cases"][case.name] = _one(case, env, asked.seconds, asked.sets)
            about = {"machine": machine(), "versions": versions(), "noise": noise.now()}
            whole = about | {"skipped": skipped, "cases": known["cases"]}
            RESULTS.write_text(json.dumps(whole, indent=1) + "\n")


def _cases(folder: Path, files: Sequence[Path], skipped: dict[str, str]) -> Iterator[Case]:
    """Yield the models; those that cannot be made are named with the reason."""
    found: dict[str, Case] = {}
    for case in every_case(folder, files):
        found[case.name] = case
        yield case
    if files:
        return
    if find_spec("torch") is None:
        skipped["shapes and the old exporter's models"] = "torch is not installed"
        return
    from benchmarks.simplifiers import exports

    for name in exports.EXPORTS:
        try:
            path = exports.write(name)
        except Exception as error:
            skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        like = found.get(SAMPLES_OF.get(name, ""))
        yield Case(name, path, like.samples if like else folder / "none")


def _one(case: Case, env: Environment, seconds: float, sets: int) -> dict[str, Any]:
    """Simplify one model by every tool, and time what is right."""
    with TemporaryDirectory(prefix="ortune-simplifiers-") as temporary:
        folder = Path(temporary)
        feeds = samples(case, folder)
        wanted = outputs(case.model, feeds)
        made = [
            make(tool, case.model, folder / f"{tool}.onnx", env, feeds, wanted) for tool in TOOLS
        ]
        for one in made:
            print(f"{case.name}: {one.tool}: {one.error or one.nodes}", flush=True)
        right = [one for one in made if one.timed and not one.error]
        files = [case.model, *(folder / f"{one.tool}.onnx" for one in right)]
        few = folder / "few"
        raced = codec.encode(
            race(
                [(path, CPU) for path in files],
                data=str(few) if few.is_dir() else None,
                seconds=seconds,
                sets=sets,
            )
        )
        timed = dict(zip((one.tool for one in right), _timed(raced), strict=True))
        nodes = count(case.model)
        rows = [_row(one, timed.get(one.tool, {})) for one in made]
    return {"nodes": nodes, "rows": rows, "noise": raced["noise"], "judgement": raced["judgement"]}


def _timed(raced: dict[str, Any]) -> list[dict[str, Any]]:
    both = zip(raced["rows"][1:], raced["ratios"][1:], strict=True)
    return [{"ratio": _plain(ratio), "p50_ns": row.get("p50_ns")} for row, ratio in both]


def _plain(ratio: Any) -> Any:
    if ratio is None or not math.isfinite(ratio["value"]):
        return None
    return ratio


def _row(one: Made, timed: dict[str, Any]) -> dict[str, Any]:
    return one.record() | timed


if __name__ == "__main__":
    main()
