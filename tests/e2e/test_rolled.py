"""A worker rolls the states of real files; what comes out are samples like any others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.stateful import HELD, WIDTH, cell_states, write_cell, write_decoder

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadData
from ortune.data import split
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.rolled import StatefulModel


def sequenced(model: Path, work: Path, how: str, *state: str) -> StatefulModel:
    known, digest = read_facts(file.load(model)), file.compute_digest(model)
    return StatefulModel(model, digest, known, how, state, Cpu(threads=1), {}, work)


def loaded(feeds: Feeds) -> list[dict[str, np.ndarray]]:
    return list(Stream(feeds.stream))


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    return write_cell(tmp_path / "cell.onnx")


def sequence(seed: int, steps: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((steps, 1, WIDTH)).astype(np.float32)


def test_rolled_states_are_those_of_a_loop_in_numpy(cell: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for at in range(3):
        np.savez(data / f"{at}.npz", x=sequence(at), label=np.arange(6) + 10 * at)
    feeds = sequenced(cell, tmp_path, "file", "hn:h").load(data, tmp_path / "out")
    wanted = np.concatenate([cell_states(sequence(at)) for at in range(3)])
    got = np.stack([sample["h"] for sample in loaded(feeds)])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert feeds.count == 18 and feeds.labels == (*range(6), *range(10, 16), *range(20, 26))
    assert feeds.notes[-1] == "rolled through 3 sequences of 6 steps: hn:h"
    assert not (tmp_path / "out" / "given").exists()


def test_the_steps_of_a_sequence_stay_in_one_part_of_the_split(cell: Path, tmp_path: Path) -> None:
    steps = [{"x": x, "group": f"{at % 5}"} for at, x in enumerate(sequence(0, 40))]
    feeds = sequenced(cell, tmp_path, "group", "hn:h").load(lambda: steps, tmp_path / "out")
    assert feeds.groups == tuple(f"{at // 8}" for at in range(40))
    parts = split.split_samples(feeds)
    held = [{feeds.groups[at] for at in part} for part in (parts.calibration, parts.final)]
    assert held[0] and held[1] and not held[0] & held[1]


def test_the_number_of_samples_of_a_sequence_and_its_first_state(
    cell: Path, tmp_path: Path
) -> None:
    ones = np.ones((1, HELD), np.float32)
    steps = [{"x": x, "h": ones} for x in sequence(0, 4)]
    feeds = sequenced(cell, tmp_path, "2", "hn:h").load(lambda: steps, tmp_path / "out")
    states = [sample["h"] for sample in loaded(feeds)]
    assert [bool((state == 1).all()) for state in states] == [True, False, True, False]


def test_equal_steps_with_another_past_are_other_samples(cell: Path, tmp_path: Path) -> None:
    steps = [{"x": np.ones((1, WIDTH), np.float32)}] * 4
    feeds = sequenced(cell, tmp_path, "2", "hn:h").load(lambda: steps, tmp_path / "out")
    one, two, three, four = feeds.digests
    assert one == three and two == four and one != two


def test_an_earlier_run_keeps_its_samples(cell: Path, tmp_path: Path) -> None:
    how = sequenced(cell, tmp_path, "2", "hn:h")
    steps = [{"x": x} for x in sequence(0, 4)]
    first = how.load(lambda: steps, tmp_path / "one")
    again = replace(how, earlier=tmp_path / "one").load(lambda: steps, tmp_path / "two")
    assert first.digests == again.digests
    assert again.stream.samefile(first.stream)
    other = replace(how, earlier=tmp_path / "one").load(lambda: steps[:2], tmp_path / "three")
    assert not other.stream.samefile(first.stream) and other.count == 2


def test_the_cache_of_a_decoder_grows_with_mask_and_positions(tmp_path: Path) -> None:
    model = write_decoder(tmp_path / "decoder.onnx")
    ids = np.random.default_rng(0).integers(0, 50, (5, 1))
    np.savez(tmp_path / "ids.npz", input_ids=ids)
    feeds = sequenced(model, tmp_path, "file").load(tmp_path / "ids.npz", tmp_path / "out")
    samples = loaded(feeds)
    assert [s["past_key_values.0.key"].shape for s in samples] == [
        (1, 2, past, 4) for past in range(5)
    ]
    assert [s["attention_mask"].shape for s in samples] == [(1, n) for n in range(1, 6)]
    assert [int(s["position_ids"][0, 0]) for s in samples] == [0, 1, 2, 3, 4]
    last = samples[-1]["past_key_values.0.key"]
    assert (last[:, :, :3] == samples[3]["past_key_values.0.key"]).all()


def test_a_model_that_does_not_run_on_what_it_gave_is_refused(tmp_path: Path) -> None:
    model = write_decoder(tmp_path / "decoder.onnx")
    steps = [{"input_ids": np.full((1, 1), value)} for value in (1, 2, 99, 3)]
    with pytest.raises(BadData) as error:
        sequenced(model, tmp_path, "4").load(lambda: steps, tmp_path / "out")
    assert "sequence 0 step 2: the model does not run" in error.value.what
    assert "present.0.key:past_key_values.0.key" in error.value.fix
    assert not (tmp_path / "out" / "feeds.stream").exists()


def test_an_input_without_a_state_is_asked_for(cell: Path, tmp_path: Path) -> None:
    steps = [{"h": np.zeros((1, HELD), np.float32)}] * 2
    with pytest.raises(BadData, match="input 'x' is missing"):
        sequenced(cell, tmp_path, "2", "hn:h").load(lambda: steps, tmp_path / "out")
