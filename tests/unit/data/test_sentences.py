"""Raw texts become inputs as the model's folder says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.texts import CLS, SEP, make_folder

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data.feeds import Feeds, load_feeds
from ortune.data.stream import Stream

pytest.importorskip("tokenizers")

INPUTS = [
    TensorSpec(name, "int64", ("batch", "sequence"))
    for name in ("input_ids", "attention_mask", "token_type_ids")
]


def read(
    tmp_path: Path, rows: Sequence[Any], name: str = "rows.jsonl", **config: Any
) -> tuple[Feeds, list[dict[str, Any]]]:
    path = tmp_path / name
    lines = rows if name.endswith((".txt", ".csv")) else map(json.dumps, rows)
    path.write_text("\n".join(lines))
    settings = make_folder(tmp_path / "folder", **config)
    feeds = load_feeds(path, INPUTS, tmp_path, settings=settings)
    return feeds, [{k: v.tolist() for k, v in row.items()} for row in Stream(feeds.stream)]


def test_lines_are_as_long_as_they_are(tmp_path: Path) -> None:
    feeds, (first, second) = read(tmp_path, ["a cat sat here", "", "a cat"], "texts.txt")
    assert feeds.count == 2 and feeds.labels is None
    assert first["input_ids"] == [[CLS, 4, 5, 6, 7, SEP]]
    assert second["input_ids"] == [[CLS, 4, 5, SEP]]
    assert second["attention_mask"] == [[1, 1, 1, 1]]


def test_classes_by_name_and_pairs(tmp_path: Path) -> None:
    rows = [
        {"text": "a cat", "text_pair": "sat", "label": "yes"},
        {"text": "here", "text_pair": "a", "label": 0},
    ]
    feeds, (first, _) = read(tmp_path, rows, id2label={"0": "no", "1": "yes"})
    assert feeds.labels == (1, 0)
    assert first["input_ids"] == [[CLS, 4, 5, SEP, 6, SEP]]
    assert first["token_type_ids"] == [[0, 0, 0, 0, 1, 1]]
    lines = ["text,label", "a cat,no", '"here, a",yes']
    feeds, _ = read(tmp_path, lines, "rows.csv", id2label={"0": "no", "1": "yes"})
    assert feeds.labels == (0, 1)
    with pytest.raises(BadData, match="'maybe' is no class"):
        read(tmp_path, [{"text": "a", "label": "maybe"}], id2label={"0": "no", "1": "yes"})


def test_a_scored_pair_is_one_sample_of_two_rows(tmp_path: Path) -> None:
    rows = [{"text": "a cat sat", "text_pair": "here", "score": 0.5}]
    feeds, (sample,) = read(tmp_path, rows, similarity=True)
    assert feeds.labels == (0.5,)
    assert sample["input_ids"] == [[CLS, 4, 5, 6, SEP], [CLS, 7, SEP, 0, 0]]
    assert sample["attention_mask"] == [[1] * 5, [1, 1, 1, 0, 0]]
    unscored = [{"text": "a cat sat", "text_pair": "here"}]
    feeds, both = read(tmp_path, unscored, similarity=True)
    assert [len(sample["input_ids"][0]) for sample in both] == [5, 3], "each of its own length"
    assert len(set(feeds.groups or ())) == 1, "they stay together"


def test_labels_of_words_go_to_their_first_tokens(tmp_path: Path) -> None:
    rows = [{"text": ["a", "undo", "cat"], "label": ["O", "V", "N"]}]
    names = {"0": "O", "1": "V", "2": "N"}
    feeds, (sample,) = read(tmp_path, rows, id2label=names)
    assert sample["input_ids"] == [[CLS, 4, 8, 9, 5, SEP]]
    assert feeds.labels == ([-100, 0, 1, -100, 2, -100],)
    with pytest.raises(BadData, match="wrong number of labels: Got 1, expected 2"):
        read(tmp_path, [{"text": ["a", "cat"], "label": ["O"]}], id2label=names)


def test_texts_are_cut_at_the_longest_that_a_model_takes(tmp_path: Path) -> None:
    _, (sample,) = read(tmp_path, ["a cat sat here"], "t.txt", max_position_embeddings=4)
    assert sample["input_ids"] == [[CLS, 4, 5, SEP]]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table({"text": ["a cat", "here"], "score": [0.1, 0.9], "id": [1, 2]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    settings = make_folder(tmp_path / "folder")
    feeds = load_feeds(tmp_path / "rows.parquet", INPUTS, tmp_path, settings=settings)
    assert feeds.count == 2 and feeds.labels == (0.1, 0.9)
    assert any("ignored: id" in note for note in feeds.notes)


def test_a_fixed_length_is_filled_up(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a cat")
    fixed = [
        TensorSpec("input_ids", "int32", (1, 6)),
        TensorSpec("attention_mask", "int32", (1, 6)),
    ]
    settings = make_folder(tmp_path / "folder", pad_token_id=0)
    feeds = load_feeds(tmp_path / "t.txt", fixed, tmp_path, settings=settings)
    sample = Stream(feeds.stream)[0]
    np.testing.assert_array_equal(sample["input_ids"], [[CLS, 4, 5, SEP, 0, 0]])
    assert sample["input_ids"].dtype == np.int32


def test_texts_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a cat")
    with pytest.raises(BadData, match=r"no tokenizer.json") as error:
        load_feeds(tmp_path / "t.txt", INPUTS, tmp_path)
    assert "folder" in error.value.fix
    with pytest.raises(BadData, match="holds no text"):
        read(tmp_path, [{"text": None}])


def test_a_text_to_generate_from_is_labelled_by_its_next_tokens(tmp_path: Path) -> None:
    cache = TensorSpec("past_key_values.0.key", "float32", ("batch", 2, "past", "width"))
    places = TensorSpec("position_ids", "int64", ("batch", "sequence"))
    sizes = {"hidden_size": 8, "num_attention_heads": 2}
    settings = make_folder(tmp_path / "folder", architectures=["ToyForCausalLM"], **sizes)
    path = tmp_path / "texts.txt"
    path.write_text("a cat sat")
    feeds = load_feeds(path, [*INPUTS[:2], places, cache], tmp_path, settings=settings)
    (sample,) = Stream(feeds.stream)
    assert feeds.labels == ([4, 5, 6, SEP, -100],)
    assert sample["input_ids"].tolist() == [[CLS, 4, 5, 6, SEP]]
    assert sample["position_ids"].tolist() == [[0, 1, 2, 3, 4]]
    assert sample[cache.name].shape == (1, 2, 0, 4)
