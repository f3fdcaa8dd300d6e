from pathlib import Path

import numpy as np
import pytest

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream
from ortune.data.synthetic import generate_feeds

BERT = [
    TensorSpec("input_ids", "int64", ("batch", "seq")),
    TensorSpec("attention_mask", "int64", ("batch", "seq")),
    TensorSpec("token_type_ids", "int64", ("batch", "seq")),
    TensorSpec("position_ids", "int64", ("batch", "seq")),
]


def one(inputs: list[TensorSpec], out: Path, **options: object) -> dict[str, np.ndarray]:
    given = {"shapes": {}, "ranges": {}, "count": 2, **options}
    return Stream(generate_feeds(inputs, out, **given).stream)[0]  # type: ignore[arg-type]


def test_what_names_and_types_stand_for(tmp_path: Path) -> None:
    found = one(BERT, tmp_path)
    assert all(array.shape == (1, 16) and array.dtype == np.int64 for array in found.values())
    assert 0 <= found["input_ids"].min() <= found["input_ids"].max() < 100
    assert (found["attention_mask"] == 1).all()
    assert (found["token_type_ids"] == 0).all()
    assert found["position_ids"].tolist() == [list(range(16))]


@pytest.mark.parametrize(
    ("dtype", "shape", "made"),
    [
        ("float32", ("n", 3, "h", "w"), (1, 3, 224, 224)),
        ("uint8", (None, None, None, 3), (1, 224, 224, 3)),
        ("float16", (2, None, 128), (2, 16, 128)),
        ("float32", (2, "batch", 128), (2, 1, 128)),
        ("float32", ("batch", "samples"), (1, 512)),
        ("float32", ("seq", 8), (16, 8)),
        ("bfloat16", (None, 4), (1, 4)),
        ("bool", (None, 4), (1, 4)),
        ("float64", (), ()),
        ("int8", (5,), (5,)),
        ("object", (None, 2), (1, 2)),
    ],
)
def test_inferred_shapes(
    tmp_path: Path, dtype: str, shape: tuple[object, ...], made: tuple[int, ...]
) -> None:
    found = one([TensorSpec("x", dtype, shape)], tmp_path)["x"]  # type: ignore[arg-type]
    assert found.shape == made
    assert found.dtype.name == dtype or found.dtype.kind == "U"
    if dtype == "bool":
        assert found.all()


def test_equal_arguments_equal_samples(tmp_path: Path) -> None:
    spec = [TensorSpec("x", "float32", ("n", 50))]

    def digests(seed: int) -> tuple[str, ...]:
        return generate_feeds(spec, tmp_path, shapes={}, ranges={}, count=3, seed=seed).digests

    assert digests(0) == digests(0)
    assert len(set(digests(0) + digests(1))) == 6


def test_a_given_shape_sets_named_dimensions_everywhere(tmp_path: Path) -> None:
    found = one(BERT, tmp_path, shapes={"input_ids": (2, 128)})
    assert {array.shape for array in found.values()} == {(2, 128)}


def test_given_ranges_include_both_ends(tmp_path: Path) -> None:
    inputs = [TensorSpec("n", "int64", (1000,)), TensorSpec("x", "float32", (1000,))]
    found = one(inputs, tmp_path, ranges={"n": (5, 7), "x": (-2, -1)})
    assert set(found["n"].tolist()) == {5, 6, 7}
    assert -2 <= found["x"].min() <= found["x"].max() <= -1


def test_it_says_what_it_made_up(tmp_path: Path) -> None:
    inputs = [TensorSpec("x", "float32", ("n", 3)), TensorSpec("rate", "int64", ())]
    feeds = generate_feeds(inputs, tmp_path, shapes={}, ranges={"rate": (16000, 16000)})
    assert isinstance(feeds, Feeds)
    assert feeds.synthetic
    assert feeds.count == len(feeds.digests) == 8
    assert feeds.notes == (
        "made up: x float32 [1, 3], standard normal",
        "made up: rate int64 [], 16000..16000",
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"shapes": {"y": (1,)}}, "no input 'y'"),
        ({"ranges": {"y": (0, 1)}}, "no input 'y'"),
        ({"shapes": {"x": (1,)}}, "wrong rank: Got 1 [1], expected 2 [n, 3]"),
        ({"shapes": {"x": (1, 4)}}, "Got [1, 4], expected [n, 3]"),
        ({"ranges": {"x": (0, 300)}}, "range 0..300 does not fit input 'x' of uint8"),
        ({"ranges": {"x": (0, 0.5)}}, "does not fit input 'x' of uint8"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, options: dict[str, object], what: str) -> None:
    with pytest.raises(BadData) as error:
        one([TensorSpec("x", "uint8", ("n", 3))], tmp_path, **options)
    assert what in error.value.what
    assert len(str(error.value).splitlines()) == 2


def test_an_unknown_rank_must_be_given(tmp_path: Path) -> None:
    spec = [TensorSpec("x", "float32", None)]
    with pytest.raises(BadData, match="--shape x:"):
        one(spec, tmp_path)
    assert one(spec, tmp_path, shapes={"x": ()})["x"].shape == ()


def test_indices_are_drawn_from_the_rows_of_their_table(tmp_path: Path) -> None:
    ids = TensorSpec("ids", "int64", (1, 64), rows=7)
    places = TensorSpec("position_ids", "int64", (1, 64), rows=32)
    found = generate_feeds([ids, places], tmp_path, shapes={}, ranges={})
    samples = [Stream(found.stream)[index] for index in range(found.count)]
    drawn = np.concatenate([sample["ids"] for sample in samples])
    assert (drawn.min(), drawn.max()) == (0, 6)
    assert samples[0]["position_ids"].max() == 31
    assert "made up: ids int64 [1, 64], 0..6" in found.notes


def test_rows_of_a_named_dimension_are_as_many_as_it_has_here(tmp_path: Path) -> None:
    inputs = [
        TensorSpec("ends", "int64", (2, "edges"), rows="nodes"),
        TensorSpec("x", "float32", ("nodes", 4)),
        TensorSpec("lost", "int64", (2,), rows="nowhere"),
    ]
    shapes = {"x": (3, 4), "ends": (2, 64)}
    found = generate_feeds(inputs, tmp_path, shapes=shapes, ranges={})
    assert {*Stream(found.stream)[0]["ends"].flat} == {0, 1, 2}
    assert found.notes[0] == "made up: ends int64 [2, 64], 0..2"
    assert "a guess: set it with --range lost:LOW..HIGH" in found.notes[2]
    with pytest.raises(BadData, match="3 rows"):
        generate_feeds(inputs, tmp_path, shapes=shapes, ranges={"ends": (0, 3)})


def test_sizes_are_small(tmp_path: Path) -> None:
    """Eight pads of up to 99 of a tensor [1, 3, 4, 5] took ten gigabytes."""
    found = generate_feeds(
        [TensorSpec("pads", "int64", (64,), sizes=True)], tmp_path, shapes={}, ranges={}
    )
    assert {*Stream(found.stream)[0]["pads"].tolist()} == {1, 2, 3}


def test_a_range_beyond_the_table_names_the_one_that_fits(tmp_path: Path) -> None:
    ids = TensorSpec("ids", "int64", (1, 64), rows=7)
    with pytest.raises(BadData) as found:
        generate_feeds([ids], tmp_path, shapes={}, ranges={"ids": (0, 7)})
    assert "--range ids:0..6" in found.value.fix


def test_inputs_that_share_a_name_share_its_size(tmp_path: Path) -> None:
    inputs = [
        TensorSpec("mask", "int64", ("batch", "time")),
        TensorSpec("signal", "float32", ("batch", "time")),
        TensorSpec("picture", "float32", ("batch", 3, "height", "width")),
        TensorSpec("weights", "float32", ("batch", "width", "height", 8)),
    ]
    arrays = one(inputs, tmp_path)
    assert arrays["mask"].shape == arrays["signal"].shape == (1, 512)
    assert arrays["picture"].shape[2:] == arrays["weights"].shape[1:3] == (224, 224)
    chosen = one(inputs, tmp_path / "chosen", shapes={"mask": (1, 40)})
    assert chosen["signal"].shape == (1, 40)


@pytest.mark.parametrize(
    ("length", "sequence", "most"),
    [
        (TensorSpec("lengths", "int64", ("b",)), TensorSpec("x", "float32", ("b", "t", 80)), 16),
        (TensorSpec("seq_lens", "int32", ("b",)), TensorSpec("x", "float32", (7, "b", 80)), 7),
        (TensorSpec("seqLen", "int32", (1,)), TensorSpec("x", "float32", (1, 9, 80)), 9),
        (TensorSpec("x_len", "int64", ()), TensorSpec("x", "float32", ("b", "t")), 512),
        (TensorSpec("len", "int8", (2,)), TensorSpec("x", "float32", (2, 400)), 127),
    ],
)
def test_lengths_stay_within_the_sequence(
    tmp_path: Path, length: TensorSpec, sequence: TensorSpec, most: int
) -> None:
    fed = generate_feeds([length, sequence], tmp_path, shapes={}, ranges={}, count=40)
    drawn = [
        int(value) for sample in Stream(fed.stream) for value in np.ravel(sample[length.name])
    ]
    assert 1 <= min(drawn) <= max(drawn) <= most
    assert len(set(drawn)) > 3


def test_a_range_of_lengths_is_as_given(tmp_path: Path) -> None:
    inputs = [TensorSpec("lengths", "int64", (1,)), TensorSpec("x", "float32", (1, "t", 8))]
    assert one(inputs, tmp_path, ranges={"lengths": (90, 90)})["lengths"].tolist() == [90]
