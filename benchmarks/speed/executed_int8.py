"""What OpenVINO executes of int8 files: ours, ours with the other grid, NNCF's, and 16 bits.

    python -m benchmarks.speed.executed_int8 [--files FOLDER] [--before FOLDER] [model ...]

Every file is compiled once, with the better of the hints f32 and bf16, and all take turns on the
same samples, for each instruction set that OpenVINO can be held to (``ONEDNN_MAX_CPU_ISA``, a
process each). A row has the median milliseconds, the ratio to ours with its 95 % interval (of
turns drawn again), the same on two threads, the median signal to noise ratio over samples not
calibrated on, of the answers of OpenVINO and of the same file in onnxruntime at level disabled,
and what ran in integers.

``--before`` takes files NAME.onnx that an earlier commit wrote; ``--files`` keeps what is made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

import ortune as ot
from benchmarks.peers.environments import environment
from benchmarks.result_files import result_file, write_results
from benchmarks.speed.budgets import SHAPES
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.openvino.native import open_native_recording, open_native_session
from ortune.bundle.engine.golden import snr_db
from ortune.core.wording import format_integer_use
from ortune.graph.io import file
from ortune.graph.mapping.nodes import count_integer_layers
from ortune.measurement.machine.machine import describe_machine

HERE = Path(__file__).resolve().parent
CONVOLUTIONS = (
    "efficientnet-lite0", "mobilenet-v2", "keras-resnet", "resnet50", "silu-unet", "unet", "dunet",
    "detector", "layout", "spindles",
)  # fmt: skip
TRANSFORMERS = ("queries", "conformer", "vit", "minilm", "bert", "gpt2")
SETS = {"amx": "", "vnni": "AVX512_CORE_VNNI", "avx2": "AVX2"}
"""Instruction set -> how OpenVINO is held to it."""
SECONDS, SAMPLES, DRAWS = 2.0, 8, 1000
Arrays = Mapping[str, NDArray[Any]]
Answers = list[dict[str, NDArray[Any]]]
Run = Callable[[Arrays], Mapping[str, NDArray[Any]]]
Key = TypeVar("Key")
Row = dict[str, Any]
Hint = Literal["f32", "bf16"]


@dataclass(frozen=True)
class Entry:
    """A file in the race."""

    name: str
    path: Path
    hints: tuple[Hint, ...]


def main(*words: str) -> int:
    """Measure every model under every instruction set; write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", default="")
    parser.add_argument("--files")
    parser.add_argument("models", nargs="*")
    chosen = parser.parse_args(words)
    names, before = chosen.models or [*CONVOLUTIONS, *TRANSFORMERS], chosen.before
    rows: list[Row] = []
    with TemporaryDirectory() as temporary:
        folder = chosen.files or temporary
        for name in names:
            for units, value in list_sets().items():
                command = [sys.executable, "-m", __spec__.name, "--one", name, units, folder]
                done = subprocess.run(
                    [*command, before],
                    env=os.environ | ({"ONEDNN_MAX_CPU_ISA": value} if value else {}),
                    stdout=subprocess.PIPE, text=True, check=False,
                )  # fmt: skip
                if done.returncode:
                    return done.returncode
                found = json.loads(done.stdout.splitlines()[-1])
                rows += found
                for row in found:
                    print(json.dumps(row), file=sys.stderr, flush=True)
    result: Row = {"benchmark": "executed int8", "machine": describe_machine(), "rows": rows}
    names_of = ("ortune", "onnxruntime", "openvino", "numpy")
    result["versions"] = {name: version(name) for name in names_of}
    result["load average"] = os.getloadavg()
    write_results(result_file("executed_int8"), result)
    return 0


def list_sets() -> dict[str, str]:
    """Return the instruction sets that this machine has."""
    has_amx = "amx" in describe_machine()["instruction sets"]
    return {units: value for units, value in SETS.items() if units != "amx" or has_amx}


def measure_model(
    name: str, units: str, folder: Path, before: Path | None
) -> list[dict[str, Any]]:
    """Return one row a file of a model, under the instruction set that this process is held to."""
    made = find_model(name)
    entries = list(list_entries(name, units, made, folder, before))
    paths = sorted((made / "data").glob("*.npz"))[:SAMPLES]
    feeds = [read_feed(path) for path in paths]
    with Cpu(threads=1).open(made / "model.onnx") as session:
        expected = [session.run(feed) for feed in feeds]
    readings, answers = race_files(entries, feeds, threads=1)
    on_two, _ = race_files(entries, feeds, threads=2)
    noise = {key: compute_snr(expected, given) for key, given in answers.items()}
    fastest = {
        entry.name: min(entry.hints, key=lambda hint: np.median(readings[entry.name, hint]))
        for entry in entries
    }
    ours = "ours", fastest["ours"]
    rows = []
    for entry in entries:
        key = entry.name, fastest[entry.name]
        times = readings[key]
        rows.append(
            {
                "model": name, "units": units, "file": entry.name, "hint": key[1],
                "ms": round(float(np.median(times)) * 1e3, 3),
                "to ours": summarize_ratio(times, readings[ours]),
                "to ours, two threads": summarize_ratio(on_two[key], on_two[ours]),
                "snr": round(noise[key], 1),
                **describe_execution(entry, key[1], feeds, expected),
            }
        )  # fmt: skip
    return rows


def race_files(
    entries: Sequence[Entry], feeds: Sequence[Arrays], threads: int
) -> tuple[dict[tuple[str, str], NDArray[Any]], dict[tuple[str, str], Answers]]:
    """Return seconds of the turns and the answers of each file with each of its hints."""
    answers: dict[tuple[str, str], Answers] = {}
    with ExitStack() as stack:
        runs: dict[tuple[str, str], Run] = {}
        for entry in entries:
            for hint in entry.hints:
                properties = Openvino(threads=threads, precision=hint).build_properties()
                session = stack.enter_context(open_native_session(entry.path, properties))
                answers[entry.name, hint] = [dict(session.run(feed)) for feed in feeds]
                runs[entry.name, hint] = session.run
        return time_in_turns(runs, feeds, SECONDS * len(entries)), answers


def time_in_turns(
    runs: Mapping[Key, Run], feeds: Sequence[Arrays], seconds: float
) -> dict[Key, NDArray[Any]]:
    """Return the seconds of each turn of every run; all take the same samples one by one."""
    readings: dict[Key, list[float]] = {key: [] for key in runs}
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end or turn < 2 * len(feeds):
        for key, run in runs.items():
            start = time.perf_counter()
            run(feeds[turn % len(feeds)])
            readings[key].append(time.perf_counter() - start)
        turn += 1
    return {key: np.array(times) for key, times in readings.items()}


def find_model(name: str) -> Path:
    """Return a folder with ``model.onnx``, ``data`` and ``calibration``."""
    if name in SHAPES:
        return SHAPES[name].write()
    from benchmarks.speed.shapes import write

    return write(name)


def list_entries(
    name: str, units: str, made: Path, folder: Path, before: Path | None
) -> Iterator[Entry]:
    """Yield the files of a model, made once: as the search offers them for the instruction set."""
    symmetric, seven = units == "amx", ", reduce_range=true" if units == "avx2" else ""
    hints: tuple[Hint, ...] = ("f32", "bf16") if units == "amx" else ("f32",)
    attends = ", attention=true" if units == "vnni" and name in TRANSFORMERS else ""
    ours = [("ours", symmetric, attends), ("other grid", not symmetric, attends)]
    for label, grid, more in [*ours, *([("float attention", symmetric, "")] if attends else ())]:
        settings = f"{', symmetric=true' if grid else ''}{more}{seven}"
        path = folder / f"{name}-{'symmetric' if grid else 'zero-points'}{more}{seven}.onnx"
        if not path.is_file():
            step = f"int8-static(target=openvino{settings})"
            ot.apply(made / "model.onnx", [step], data=made / "calibration", out=path)
        yield Entry(label, path, hints)
    if units == "amx":
        yield Entry("16 bits", made / "model.onnx", ("bf16",))
    if before is not None and (before / f"{name}.onnx").is_file():
        yield Entry("before", before / f"{name}.onnx", hints)
    path = folder / f"{name}-nncf.xml"
    if not path.is_file():
        kind = "transformer" if name in TRANSFORMERS else "other"
        script = HERE.parent / "peers" / "tools" / "run_nncf.py"
        arguments = [made / "model.onnx", made / "calibration", path, "hinted, OpenVINO", kind]
        command = [environment("nncf").python, script, *arguments]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    yield Entry("NNCF", path, hints)


def read_feed(path: Path) -> dict[str, NDArray[Any]]:
    """Return the inputs of a sample."""
    kept = np.load(path)
    return {name: kept[name] for name in kept if name not in ("label", "group")}


def compute_snr(expected: Answers, answers: Answers) -> float:
    """Return the median over samples of the worst output's signal to noise ratio in dB."""
    return float(np.median(list(map(snr_db, expected, answers))))


def summarize_ratio(times: NDArray[Any], ours: NDArray[Any]) -> list[float]:
    """Return the ratio of medians and its 95 % interval, of turns drawn again together."""
    rng = np.random.default_rng(0)
    count = min(len(times), len(ours))
    picked = rng.integers(0, count, (DRAWS, count))
    drawn = np.median(times[picked], axis=1) / np.median(ours[picked], axis=1)
    ends = np.quantile(drawn, (0.025, 0.975))
    middle = np.median(times[:count]) / np.median(ours[:count])
    return [round(float(value), 3) for value in (middle, *ends)]


def describe_execution(
    entry: Entry, hint: Hint, feeds: list[dict[str, NDArray[Any]]], expected: Answers
) -> dict[str, Any]:
    """Return what ran in integers, and the same file's answers in onnxruntime; of Q/DQ files."""
    if entry.path.suffix == ".xml" or entry.name == "16 bits":
        return {}
    properties = Openvino(threads=1, precision=hint).build_properties()
    with open_native_recording(entry.path, properties) as recording:
        for feed in feeds:
            recording.run(feed)
        use = count_integer_layers(file.load(entry.path), recording.recorded(len(feeds)))
    with Cpu(threads=1, level="disabled").open(entry.path) as session:
        answers = [session.run(feed) for feed in feeds]
    assert use is not None
    return {
        "snr in onnxruntime": round(compute_snr(expected, answers), 1),
        "layers": use.layers,
        "in float": len(use.in_float),
        "executed": format_integer_use(use),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one, held, made_in, former = sys.argv[2:]
        print(
            json.dumps(measure_model(one, held, Path(made_in), Path(former) if former else None))
        )
    else:
        sys.exit(main(*sys.argv[1:]))
