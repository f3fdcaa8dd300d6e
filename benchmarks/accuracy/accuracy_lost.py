"""What int8 loses of real models' scores: ortune's files beside onnx-neural-compressor's.

    python -m benchmarks.accuracy.accuracy_lost [name ...] [--no-timing | --seconds 60]

Both tools get the same model and the same calibration samples, one a run; no sample that
calibrates is scored. Scores are those of ``tests/real/jobs``, by labels; beside them stands the
signal to noise ratio against the float model over the calls of that score. The rival runs in an
environment of its own (``benchmarks/peers/requirements/onc.txt``), made once under ``.cache``.
Results: ``benchmarks/results/accuracy_lost.json``; latencies are ratios of paired runs,
one thread, on an idle machine. A quarter of an hour, the environment included, without timing.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tests.real.jobs import magika
from tests.real.task import Run, Task

from benchmarks.accuracy.sessions import open_plain_session
from benchmarks.peers.cases import Case as PeerCase
from benchmarks.peers.environments import Environment, environment
from benchmarks.peers.making import make
from benchmarks.peers.recorded import write as recorded
from benchmarks.result_files import result_file, write_results
from ortune.analysis.benchmark.bench import race_contestants
from ortune.backends.cpu import Cpu
from ortune.core.errors import OrtuneError
from ortune.core.plugins import codec
from ortune.core.reading import read_step
from ortune.core.step import Recipe
from ortune.data.feeds import load_feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.search.recipe.build import build

HERE = Path(__file__).resolve().parents[1]
RESULTS = result_file("accuracy_lost")
WORK = HERE.parent / ".cache" / "accuracy_lost"
MOST = 128
"""Rows that calibrate, evenly taken."""
RIVAL = "onc"
RIVALS_RECIPES = ("static", "SmoothQuant")
NOT_FED = ("label", "group")

Feeds: TypeAlias = dict[str, NDArray[Any]]
Score: TypeAlias = Callable[[Run], float]

PLAIN = ("int8-static",)
KIT = ("adaptive-rounding", "int8-static")
CONVOLUTIONS = (PLAIN, KIT, ("int8-static(head=true)",))
MIXED = (PLAIN, KIT, ("adaptive-rounding", "int8-static(observer=mse)"))
TRANSFORMER = (
    ("int8-static(smooth=0.75, split=4)",),
    ("smooth-quant", "adaptive-rounding", "int8-static"),
    ("int8-dynamic",),
)
RECURRENT = (PLAIN, ("int8-static", "int8-dynamic"), ("int8-dynamic",))


@dataclass(frozen=True)
class Case:
    """A model with labels.

    Attributes:
        job: Module of ``tests.real.jobs``.
        measure: What its score is.
        recipes: Steps of ortune's files, behind ``simplify``.
        recorded: Case of ``benchmarks.peers.recorded`` that gives model and calibration.
        score: Instead of the job's.
    """

    job: str
    measure: str
    recipes: tuple[tuple[str, ...], ...]
    recorded: str = ""
    score: Score | None = None

    def task(self, folder: Path) -> Task:
        """Return the job, its samples written into a folder."""
        folder.mkdir(parents=True)
        found: Task = import_module(f"tests.real.jobs.{self.job}").task(folder)
        return found


def _pieces(run: Run) -> float:
    """Share of the pieces whose type is found, without those that calibrate."""
    data, labels = magika.pieces()
    kept = np.arange(len(data)) % 4 > 0
    found = run(bytes=data[kept])["target_label"].argmax(1)
    return float((found == labels[kept]).mean())


CASES = {
    "efficientnet-lite0": Case("efficientnet_lite0", "top-1, 200 views", CONVOLUTIONS),
    "minilm": Case("minilm", "Spearman's correlation, SimLex-999", TRANSFORMER),
    "digit-cnn": Case("digit_cnn", "top-1, digits", CONVOLUTIONS),
    "pulsevad": Case("pulsevad", "windows called right", CONVOLUTIONS),
    "ppocr-cls": Case("ppocr_cls", "lines whose way up is found", CONVOLUTIONS),
    "ppocr-rec": Case("ppocr_rec", "characters read right", MIXED, "ppocr-rec"),
    "silero-16k": Case("silero", "F1 of frames", RECURRENT, "silero-vad-16k"),
    "magika": Case("magika", "types found", MIXED, score=_pieces),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CASES))
    parser.add_argument("--no-timing", action="store_true", help="scores and sizes alone")
    parser.add_argument("--seconds", type=float, default=60, help="of each race")
    asked = parser.parse_args()
    rival = environment(RIVAL)
    for name in asked.names or CASES:
        found = measured(name, CASES[name], rival, None if asked.no_timing else asked.seconds)
        known = json.loads(RESULTS.read_text())["cases"] if RESULTS.is_file() else {}
        about = {
            "machine": describe_machine(),
            "versions": package_versions(),
            "noise": noise.read_current_state(),
        }
        whole = {**about, "cases": {**known, name: found}}
        write_results(RESULTS, whole)
        show(name, found)


def measured(name: str, case: Case, rival: Environment, seconds: float | None) -> dict[str, Any]:
    """Make every file of a model, score it, and race those that there are.

    Args:
        seconds: Of the race; None for none.
    """
    home = WORK / name
    shutil.rmtree(home, ignore_errors=True)
    task = case.task(home / "job")
    model, samples, data = _prepared(case, task, home)
    rows = [*_ours(model, samples, case, home), *_theirs(name, case, model, samples, rival)]
    score = case.score or task.score
    calls = list(_calls(score, open_plain_session(model)))
    base = score(open_plain_session(model))
    for row in rows:
        if "error" not in row:
            row |= _judged(Path(row["path"]), model, score, calls)
    if seconds is not None:
        _race(rows, model, data, seconds)
    kept = [{key: value for key, value in row.items() if key != "path"} for row in rows]
    return {
        "measure": case.measure,
        "score": base,
        "samples": len(list(samples.iterdir())),
        "rows": kept,
    }


def _prepared(case: Case, task: Task, home: Path) -> tuple[Path, Path, Path]:
    """Return the model, a folder of calibration samples of a row each, and one to time on."""
    if case.recorded:
        made = recorded(case.recorded)
        model, source, data = made / "model.onnx", made / "calibration", made / "data"
    else:
        assert task.data is not None
        model, source, data = task.models[0], task.calibration or task.data, task.data
    rows = list(_rows(source))
    if task.calibration is None and not case.recorded:
        rows = rows[::4]
    samples = home / "samples"
    samples.mkdir()
    for count in range(min(MOST, len(rows))):
        np.savez(samples / f"{count:04}.npz", **rows[count * len(rows) // min(MOST, len(rows))])
    return model, samples, data


def _rows(folder: Path) -> Iterator[Feeds]:
    """Yield the samples of a folder row by row; arrays of unlike lengths are one sample."""
    for path in sorted(folder.glob("*.npz")):
        feeds = {name: array for name, array in np.load(path).items() if name not in NOT_FED}
        lengths = {array.shape[:1] for array in feeds.values()}
        if len(lengths) > 1 or () in lengths:
            yield feeds
            continue
        for row in range(lengths.pop()[0]):
            yield {name: array[row : row + 1] for name, array in feeds.items()}


def _ours(model: Path, samples: Path, case: Case, home: Path) -> Iterator[dict[str, Any]]:
    for index, steps in enumerate(case.recipes):
        row: dict[str, Any] = {"tool": "ortune", "recipe": " ".join(steps)}
        path = home / f"{index}.onnx"
        try:
            with TemporaryDirectory(prefix="ortune-") as folder:
                feeds = load_feeds(str(samples), read_facts(file.load(model)).inputs, Path(folder))
                recipe = Recipe("lost", tuple(read_step(text) for text in ("simplify", *steps)))
                build(model, recipe, path, feeds=feeds)
            yield row | {"path": str(path)}
        except OrtuneError as error:
            yield row | {"error": error.what}


def _theirs(
    name: str, case: Case, model: Path, samples: Path, rival: Environment
) -> Iterator[dict[str, Any]]:
    told = PeerCase(name, transformer=case.recipes is TRANSFORMER)
    for recipe in RIVALS_RECIPES:
        made = make(told, model, samples, rival, recipe)
        row = {"tool": "onnx-neural-compressor", "recipe": recipe}
        yield row | ({"error": made.error} if made.error else {"path": str(made.path(name))})


def _calls(score: Score, run: Run) -> Iterator[tuple[Feeds, Feeds]]:
    """Yield what a score gives the float model, and its answers; at most 64, the first ones."""
    kept: list[tuple[Feeds, Feeds]] = []

    def recording(**feeds: Any) -> Feeds:
        answers = run(**feeds)
        if len(kept) < MOST // 2:
            kept.append(({name: np.array(value) for name, value in feeds.items()}, answers))
        return answers

    score(recording)
    yield from kept


def _judged(
    path: Path, model: Path, score: Score, calls: list[tuple[Feeds, Feeds]]
) -> dict[str, Any]:
    """Return the score of a file, its first output's noise, and its share of the size."""
    try:
        run = open_plain_session(path)
        value = score(run)
    except Exception as error:  # a rival's file may not load: that is a result
        lines = str(error).strip().splitlines()
        return {"error": f"does not run: {lines[-1][:160] if lines else type(error).__name__}"}
    signal = wrong = 0.0
    for feeds, answers in calls:
        first = next(iter(answers))
        wanted = np.asarray(answers[first], np.float64)
        signal += float(np.square(wanted).sum())
        wrong += float(np.square(wanted - run(**feeds)[first]).sum())
    noise_db = float(10 * np.log10(signal / max(wrong, 1e-300)))
    return {
        "score": value,
        "snr": noise_db,
        "size": file.count_file_bytes(path) / file.count_file_bytes(model),
    }


def _race(rows: list[dict[str, Any]], model: Path, data: Path, seconds: float) -> None:
    """Add every file's latency over the float model's."""
    running = [row for row in rows if "error" not in row]
    entries = [(path, Cpu(threads=1)) for path in (model, *(Path(row["path"]) for row in running))]
    raced = codec.encode(race_contestants(entries, data=data, time=seconds))
    for row, ratio in zip(running, raced["ratios"][1:], strict=True):
        row["ratio"] = ratio


def show(name: str, case: Mapping[str, Any]) -> None:
    """Print one model."""
    print(f"\n{name}: {case['measure']}, float {case['score']:.4f}", flush=True)
    for row in case["rows"]:
        said = row.get("error") or (
            f"{row['score']:.4f}  {row['snr']:6.2f} dB  size {row['size']:.3f}"
            + (f"  ratio {row['ratio']['value']:.3f}" if "ratio" in row else "")
        )
        print(f"  {row['tool']:24} {row['recipe']:58} {said}")


if __name__ == "__main__":
    main()
