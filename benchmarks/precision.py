"""Recipes of every precision on real models: what they cost in answers, and what they bring.

    python -m benchmarks.precision [name ...] [--seconds 60]

Each file is made by steps as one writes them for ``ortune apply``, calibrated on samples that are
not scored, judged by the task's own score, and timed in one interleaved race against the original
on onnxruntime's CPU provider, one thread. Results: ``benchmarks/results/precision.json``. Needs an
idle machine and about half an hour.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tests.real import rendered
from tests.real.jobs import ppocr_rec, silero
from tests.real.samples import written
from tests.real.task import installed

from benchmarks.sentences import cosine
from benchmarks.shapes import write
from ortune.analysis.benchmark.bench import race
from ortune.backends.cpu import Cpu
from ortune.core.errors import OrtuneError
from ortune.core.plugins import codec
from ortune.core.step import Recipe
from ortune.data.feeds import load
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import machine, versions
from ortune.model.analysis.facts import facts
from ortune.model.io import file
from ortune.recipe.build import build

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "precision.json"
WORK = HERE.parent / ".cache" / "precision"
THREADS = 1
RECORDED = 96
"""Calls kept for calibration and timing of models that are scored by a function."""
RNG = np.random.default_rng(1)

Run = Callable[..., dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Case:
    """A model, its samples and its score.

    Attributes:
        make: Writes and returns model, calibration folder and folder of timed samples.
        score: Of a model, given a run of the original and one of the candidate; higher is better.
        measure: What the score is.
        recipes: Label -> steps.
        aim: In words, for the table.
    """

    make: Callable[[Path], tuple[Path, Path, Path]]
    score: Callable[[Run, Run, Path], float]
    measure: str
    recipes: Mapping[str, tuple[str, ...]]
    aim: str


def _sample(name: str) -> Callable[[Path], tuple[Path, Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path, Path]:
        made = written(name)
        return made / "model.onnx", made / "calibration", made / "data"

    return make


def _shape(name: str) -> Callable[[Path], tuple[Path, Path, Path]]:
    def make(folder: Path) -> tuple[Path, Path, Path]:
        made = write(name)
        return made / "model.onnx", made / "calibration", made / "data"

    return make


def _silero(folder: Path) -> tuple[Path, Path, Path]:
    """Calibrate on calls of the first third of the phone call; the rest is scored."""

    def calls(run: Run) -> None:
        for sound, _ in silero.conditions():
            silero.said(run, sound[: _third(sound)])

    kept = _recorded(SILERO, calls, folder / "calls")
    return SILERO, kept, kept


def _rec(folder: Path) -> tuple[Path, Path, Path]:
    """Calibrate on lines of news; lines of film reviews are scored."""
    strips = [rendered.strip(rendered.line(text, RNG)) for text in rendered.news()[:RECORDED]]

    def calls(run: Run) -> None:
        for strip in strips:
            run(x=strip)

    kept = _recorded(REC, calls, folder / "calls")
    return REC, kept, kept


def _recorded(model: Path, calls: Callable[[Run], None], folder: Path) -> Path:
    """Keep what calls give the model: as many as wanted, at equal distances."""
    if (folder / "0.npz").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    run = runner(model)

    def recording(**inputs: Any) -> dict[str, NDArray[Any]]:
        found.append({name: np.array(value) for name, value in inputs.items()})
        return run(**inputs)

    calls(recording)
    for index, call in enumerate(found[:: max(1, len(found) // RECORDED)][:RECORDED]):
        np.savez(folder / f"{index}.npz", **call)
    return folder


def _third(sound: NDArray[Any]) -> int:
    """Samples of the first third, in whole frames."""
    return len(sound) // 3 // silero.FRAME * silero.FRAME


def _agreement(original: Run, candidate: Run, data: Path) -> float:
    """Share of the samples whose first class is the original's."""
    same = []
    for feeds in _feeds(data):
        one, two = (next(iter(run(**feeds).values())) for run in (original, candidate))
        whole = np.isfinite(two).all(-1)
        same += (whole & (one.argmax(-1) == two.argmax(-1))).tolist()
    return float(np.mean(same))


def _sentences(original: Run, candidate: Run, data: Path) -> float:
    """Mean cosine of the sentences' embeddings."""
    return float(
        np.mean([cosine(original(**feeds), candidate(**feeds), None) for feeds in _feeds(data)])
    )


def _snr(original: Run, candidate: Run, data: Path) -> float:
    """Signal to noise of the first output, dB."""
    signal, noise_power = 0.0, 0.0
    for feeds in _feeds(data):
        one, two = (
            next(iter(run(**feeds).values())).astype(np.float64) for run in (original, candidate)
        )
        signal, noise_power = (
            signal + float((one**2).sum()),
            noise_power + float(((one - two) ** 2).sum()),
        )
    return float(10 * np.log10(signal / max(noise_power, 1e-300)))


def _f1(original: Run, candidate: Run, data: Path) -> float:
    """F1 of the frames of a labelled phone call, without its first third."""
    rows: list[tuple[bool, bool]] = []
    for sound, truth in silero.conditions():
        start = _third(sound)
        said = silero.said(candidate, sound[start:])
        rows += zip(said, truth[start // silero.FRAME :], strict=True)
    return silero.f1(np.array(rows))


def _exact(original: Run, candidate: Run, data: Path) -> float:
    """Share of 160 lines that are read without one wrong character."""
    rng = np.random.default_rng(0)
    letters, right = ppocr_rec.alphabet(), []
    for text in rendered.reviews()[:160]:
        (scores,) = candidate(x=rendered.strip(rendered.line(text, rng))).values()
        right.append(ppocr_rec.read(scores[0], letters) == text)
    return float(np.mean(right))


def _feeds(folder: Path) -> list[dict[str, NDArray[Any]]]:
    skipped = ("label", "group")
    return [
        {k: v for k, v in np.load(path).items() if k not in skipped}
        for path in sorted(folder.glob("*.npz"))
    ]


def runner(model: Path) -> Run:
    """Return ``run(**inputs)`` of a file on a plain session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs = [one.name for one in session.get_outputs()]
    inputs = {one.name for one in session.get_inputs()}

    def run(**feeds: Any) -> dict[str, NDArray[Any]]:
        given = {name: value for name, value in feeds.items() if name in inputs}
        return dict(zip(outputs, session.run(None, given), strict=True))

    return run


SILERO = installed("silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx")
REC = installed("rapidocr", "rapidocr/models/PP-OCRv6_rec_small.onnx")

TENSOR = "int8-static(per_channel=false)"
PRODUCTS = 'int8-static(ops=["MatMul", "Gemm"])'

CASES = {
    "efficientnet-lite0": Case(
        _sample("efficientnet-lite0"),
        _agreement,
        "agreement of the first class with the original",
        {
            "plain": ("simplify", "int8-static"),
            "accuracy kit": ("simplify", "adaptive-rounding", "int8-static"),
            "a step a tensor": ("simplify", TENSOR),
            "a step a tensor, accuracy kit": (
                "simplify",
                f"adaptive-rounding(before={TENSOR})",
                TENSOR,
            ),
        },
        "agreement 0.90 at 0.55 (best stock recipe: 0.81)",
    ),
    "minilm": Case(
        _sample("minilm"),
        _sentences,
        "mean cosine of sentence embeddings",
        {
            "plain": ("simplify", "int8-static"),
            "smooth, split": ("simplify", "int8-static(smooth=0.75, split=4)"),
            "with tables": ("simplify", "int8-static(smooth=0.75, split=4, embeddings=true)"),
            "accuracy kit": (
                "simplify",
                "smooth-quant",
                "adaptive-rounding",
                "int8-static",
            ),
        },
        "cosine 0.998 at 0.50",
    ),
    "silero 16k_op15": Case(
        _silero,
        _f1,
        "F1 of frames",
        {
            "static": ("simplify", "int8-static"),
            "static, LSTM dynamic": ("simplify", "int8-static", "int8-dynamic"),
        },
        "half of the weight bytes int8, not slower, F1 within 0.01",
    ),
    "PP-OCRv6 rec": Case(
        _rec,
        _exact,
        "lines read exactly",
        {
            "plain": ("simplify", "int8-static"),
            "percentile": ("simplify", "int8-static(observer=percentile)"),
            "accuracy kit": ("simplify", "adaptive-rounding", "int8-static"),
            "accuracy kit, mse": ("simplify", "adaptive-rounding", "int8-static(observer=mse)"),
            "products, other weights stored": ("simplify", PRODUCTS, "int8-weights(fold=true)"),
        },
        "half of the weight bytes int8, not slower, within 0.01",
    ),
    "gpt2": Case(
        _shape("gpt2"),
        _snr,
        "SNR of the logits, dB (random weights)",
        {
            "int4-weights": ("simplify", "int4-weights"),
            "int4-weights, gptq": ("simplify", "int4-weights(method=gptq)"),
            "int8-static": ("simplify", "int8-static(embeddings=true)"),
        },
        "tied and Gemm weights 4-bit",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=60, help="of each race")
    asked = parser.parse_args()
    known = json.loads(RESULTS.read_text())["cases"] if RESULTS.is_file() else {}
    for name in asked.names or CASES:
        known[name] = run(name, CASES[name], asked.seconds)
        about = {"machine": machine(), "versions": versions(), "noise": noise.now()}
        text = json.dumps({**about, "threads": THREADS, "cases": known}, indent=1)
        RESULTS.write_text(text + "\n")
        show(name, known[name])


def run(name: str, case: Case, seconds: float) -> dict[str, Any]:
    """Make every file of a case, score it, and race those that were made."""
    folder = WORK / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    model, calibration, data = case.make(folder)
    rows = [{"name": "original", **_about(case, model, model, data)}]
    made: list[Path] = []
    for index, (label, steps) in enumerate(case.recipes.items()):
        start = time.monotonic()
        path = folder / f"{index}.onnx"
        try:
            edits = _build(model, steps, calibration, path)
        except OrtuneError as error:
            rows.append({"name": label, "steps": steps, "error": error.what})
            continue
        row = {"name": label, "steps": steps, "seconds": time.monotonic() - start}
        rows.append({**row, "notes": edits, **_about(case, model, path, data, steps)})
        made.append(path)
    entries = [(path, Cpu(threads=THREADS)) for path in (model, *made)]
    raced = codec.encode(race(entries, data=data, seconds=seconds))
    usable = [row for row in rows if "error" not in row]
    for row, ratio in zip(usable, raced["ratios"], strict=True):
        row["ratio"] = ratio
    return {"aim": case.aim, "measure": case.measure, "rows": rows}


def _build(model: Path, steps: tuple[str, ...], calibration: Path, path: Path) -> list[str]:
    import tempfile

    from ortune.core.reading import step

    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="ortune-") as folder:
        feeds = load(str(calibration), facts(file.load(model)).inputs, Path(folder))
        recipe = Recipe("precision", tuple(step(text) for text in steps))
        built = build(model, recipe, path, feeds=feeds)
    return [f"{edit.step}: {edit.note}" for edit in built.edits if edit.note]


def _about(
    case: Case, model: Path, path: Path, data: Path, steps: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Score and bytes of a file; 4-bit weights lie two in a byte."""
    before, after = facts(file.load(model)), facts(file.load(path))
    held = dict(after.precisions)
    whole = sum(before.precisions.values())
    packed = 8 if any(step.startswith("int4") for step in steps) else 4
    integers = sum(held.get(kind, 0) * packed for kind in ("int8", "uint8"))
    return {
        "score": case.score(runner(model), runner(path), data),
        "size": file.size(path) / file.size(model),
        "weights": held,
        "integer_share": min(1.0, integers / whole),
    }


def show(name: str, case: dict[str, Any]) -> None:
    """Print one case."""
    print(f"\n{name}: {case['measure']}; aim: {case['aim']}", flush=True)
    for row in case["rows"]:
        if "error" in row:
            print(f"  {row['name']:36} {row['error'][:80]}")
            continue
        ratio = row.get("ratio") or {}
        value = f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else "-"
        print(
            f"  {row['name']:36} {value:24} score {row['score']:.4f}  size {row['size']:.3f}"
            f"  integer weights {row['integer_share']:.2f}"
        )


if __name__ == "__main__":
    main()
