"""Calibrated on states as they run, against zero states: what int8 answers lose on two models.

    python -m benchmarks.accuracy.sequences [name ...]

Each recipe is built from the same steps of the same sequences: with the states that the original
gives from step to step, with zeros in their place in the same shapes, and, where a cache grows,
with zeros of one length, as one would make samples by hand. All then run freely over sequences
that did not calibrate, each fed its own states, beside the original.
Scores alone, no times: ``benchmarks/results/sequences.json``. A few minutes on any machine.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.real.jobs import silero
from tests.real.task import installed

from benchmarks.accuracy.sessions import open_plain_session
from benchmarks.result_files import result_file, write_results
from benchmarks.speed.networks import GptStep
from ortune.backends.cpu import Cpu
from ortune.core.reading import read_step
from ortune.core.step import Recipe
from ortune.data import stream
from ortune.data.feeds import Feeds
from ortune.data.sequences.rolling import find_state_pairs
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.rolled import StatefulModel
from ortune.search.recipe.build import build

HERE = Path(__file__).resolve().parents[1]
RESULTS = result_file("sequences")
SILERO = installed("silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx")
CALIBRATING, SCORED, TOKENS, WORDS, BLOCKS = 8, 8, 32, 32000, 6
ROLLED, ZEROS, LONG = "rolled", "zeros", "zeros of one length"

Steps = list[dict[str, NDArray[Any]]]
Run = Callable[..., dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Case:
    """A model with state.

    Attributes:
        model: Writes the file into a folder and returns it.
        calibrating: Sequences of what it is fed beside its states.
        scored: Sequences that did not calibrate.
        output: What is compared.
        second: A second score of (the original's, the candidate's) answers, higher is better.
        measure: What that is.
        recipes: Steps.
    """

    model: Callable[[Path], Path]
    calibrating: Callable[[], list[Steps]]
    scored: Callable[[], list[Steps]]
    output: str
    second: Callable[[NDArray[Any], NDArray[Any]], float]
    measure: str
    recipes: tuple[tuple[str, ...], ...]


def _frames(sound: NDArray[np.float32]) -> Steps:
    """Return the frames of a waveform, each with the samples before it."""
    found: Steps = []
    context = np.zeros(silero.CONTEXT, np.float32)
    for start in range(0, len(sound) - silero.FRAME + 1, silero.FRAME):
        frame = sound[start : start + silero.FRAME]
        joined = np.concatenate([context, frame])[None]
        found.append({"input": joined, "sr": np.array(16000, np.int64)})
        context = frame[-silero.CONTEXT :]
    return found


def _third(sound: NDArray[np.float32]) -> int:
    return len(sound) // 3 // silero.FRAME * silero.FRAME


def _f1(wanted: NDArray[Any], found: NDArray[Any]) -> float:
    """F1 of the frames called speech, by a human's record of the call."""
    every = silero.conditions()
    truth = [t[_third(sound) // silero.FRAME :] for sound, t in every]
    return silero.f1(np.stack([found.reshape(-1) > 0.5, np.concatenate(truth)], 1))


def _decoder(folder: Path) -> Path:
    """Write a decoder of random weights whose past may have any length."""
    torch.manual_seed(0)
    names = [f"{part}_{block}" for block in range(BLOCKS) for part in ("key", "value")]
    ins, outs = [[f"{when}_{name}" for name in names] for when in ("past", "present")]
    past = [torch.randn(1, 12, 5, 64) for _ in names]
    path = folder / "decoder.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            GptStep(BLOCKS).eval(), (torch.zeros(1, 1, dtype=torch.long), *past), path,
            input_names=["ids", *ins], output_names=["logits", *outs], opset_version=17,
            dynamo=False, dynamic_axes={
                **{name: {2: "past_length"} for name in ins},
                **{name: {2: "whole_length"} for name in outs},
            },
        )  # fmt: skip
    return path


def _texts(seed: int, count: int) -> list[Steps]:
    ids = np.random.default_rng(seed).integers(0, WORDS, (count, TOKENS, 1, 1), np.int64)
    return [[{"ids": one} for one in text] for text in ids]


def _agreement(wanted: NDArray[Any], found: NDArray[Any]) -> float:
    """Share of the steps whose likeliest word is the original's."""
    return float((wanted.argmax(-1) == found.argmax(-1)).mean())


CASES = {
    "silero 16k_op15": Case(
        lambda folder: SILERO,
        lambda: [_frames(sound[: _third(sound)]) for sound, _ in silero.conditions()],
        lambda: [_frames(sound[_third(sound) :]) for sound, _ in silero.conditions()],
        "output",
        _f1,
        "F1 of the frames",
        (("simplify", "int8-static"), ("simplify", "int8-static", "int8-dynamic")),
    ),
    "gptkv, any past": Case(
        _decoder,
        lambda: _texts(1, CALIBRATING),
        lambda: _texts(2, SCORED),
        "logits",
        _agreement,
        "same likeliest word",
        (("simplify", "int8-static"), ("simplify", "int8-static(observer=mse)")),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(CASES))
    asked = parser.parse_args()
    known = json.loads(RESULTS.read_text())["cases"] if RESULTS.is_file() else {}
    for name in asked.names or CASES:
        with TemporaryDirectory(prefix="ortune-") as folder:
            known[name] = run(CASES[name], Path(folder))
        about = {"machine": describe_machine(), "versions": package_versions()}
        write_results(RESULTS, {**about, "cases": known})
        print(name, json.dumps(known[name], indent=1))


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Build every recipe on both kinds of states, and score what they answer."""
    model, scored = case.model(folder), case.scored()
    known = read_facts(file.load(model))
    pairs = find_state_pairs(known.inputs, known.outputs)
    states = {pair.output: pair.input for pair in pairs}
    fed = calibration(model, case.calibrating(), folder)
    first = {name: array.shape for name, array in stream.Stream(fed[ROLLED].stream)[0].items()}
    begins = {name: np.zeros(first[name], np.float32) for name in states.values()}
    wanted = answers(open_plain_session(model), scored, states, begins, case.output)
    rows = []
    for recipe in case.recipes:
        for kind in fed:
            path = folder / f"{len(rows)}.onnx"
            made = Recipe("sequences", tuple(read_step(text) for text in recipe))
            build(model, made, path, feeds=fed[kind])
            found = answers(open_plain_session(path), scored, states, begins, case.output)
            rows.append(
                {"steps": recipe, "states": kind, "snr": snr(wanted, found),
                 "second": case.second(wanted, found)}
            )  # fmt: skip
            path.unlink()
    return {
        "pairs": [str(pair) for pair in pairs],
        "calibrated": fed[ROLLED].count,
        "scored": len(wanted),
        "measure": case.measure,
        "original": case.second(wanted, wanted),
        "rows": rows,
    }


def calibration(model: Path, sequences: Sequence[Steps], folder: Path) -> dict[str, Feeds]:
    """Return the same steps with the states as they run, and with zeros in their place."""

    def samples() -> Iterator[dict[str, Any]]:
        for number, steps in enumerate(sequences):
            yield from ({**one, "group": f"{number}"} for one in steps)

    known, digest = read_facts(file.load(model)), file.compute_digest(model)
    asked = StatefulModel(model, digest, known, "group", (), Cpu(threads=1), {}, folder)
    rolled = asked.load(samples, folder / "rolled")
    names = {pair.input for pair in find_state_pairs(known.inputs, known.outputs)}
    growing = dict(asked.rolling.list_growing_states())
    longest = dict.fromkeys(growing, TOKENS - 1)
    found = {ROLLED: rolled}
    for kind, lengths in ((ZEROS, {}), *([(LONG, longest)] if growing else [])):
        path = folder / f"{len(found)}.stream"
        stream.write_stream(
            path,
            (
                {n: _zeros(a, growing.get(n), lengths.get(n)) if n in names else a
                 for n, a in one.items()}
                for one in stream.Stream(rolled.stream)
            ),
        )  # fmt: skip
        found[kind] = replace(rolled, stream=path)
    return found


def _zeros(state: NDArray[Any], axis: int | None, length: int | None) -> NDArray[Any]:
    """Return zeros of the state's shape, or of another length."""
    if axis is None or length is None:
        return np.zeros_like(state)
    return np.zeros((*state.shape[:axis], length, *state.shape[axis + 1 :]), state.dtype)


def answers(
    run: Run,
    sequences: Sequence[Steps],
    states: Mapping[str, str],
    begins: Mapping[str, NDArray[Any]],
    output: str,
) -> NDArray[Any]:
    """Run freely: every state is the model's own. Return [steps of all sequences, values]."""
    found = []
    for steps in sequences:
        held = dict(begins)
        for one in steps:
            given = run(**one, **held)
            held = {into: given[out] for out, into in states.items()}
            found.append(given[output].reshape(-1))
    return np.stack(found)


def snr(wanted: NDArray[Any], found: NDArray[Any]) -> float:
    """Signal to noise over all steps, dB."""
    one, two = wanted.astype(np.float64), found.astype(np.float64)
    return float(10 * np.log10((one**2).sum() / max(((one - two) ** 2).sum(), 1e-300)))


if __name__ == "__main__":
    main()
