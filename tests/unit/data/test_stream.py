from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortune.bundle.engine.call import prepare_checks
from ortune.core.errors import BadData, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.data import stream
from ortune.data.stream import Stream

DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.unicode_string_dtypes(endianness="="),
    hnp.byte_string_dtypes(endianness="="),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
SAMPLES = st.lists(st.dictionaries(st.text(max_size=4), ARRAYS, max_size=3), max_size=4)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(samples=SAMPLES)
def test_what_is_written_is_read_back(
    tmp_path: Path, samples: list[dict[str, np.ndarray]]
) -> None:
    path = tmp_path / "s.stream"
    assert stream.write_stream(path, iter(samples)) == len(samples)
    found = Stream(path)
    assert len(found) == len(samples)
    for given_sample, sample in zip(samples, found, strict=True):
        assert list(sample) == list(given_sample)
        for name, array in given_sample.items():
            assert sample[name].dtype == array.dtype
            assert sample[name].shape == array.shape
            assert sample[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4", "uint4"])
def test_ml_dtypes_come_back_by_name(tmp_path: Path, name: str) -> None:
    values = np.arange(4).astype(getattr(ml_dtypes, name))
    stream.write_stream(tmp_path / "s", [{"x": values, "scalar": values[2]}])
    found = Stream(tmp_path / "s")[0]
    assert found["x"].dtype == values.dtype
    np.testing.assert_array_equal(found["x"].astype(float), [0, 1, 2, 3])
    assert found["scalar"].shape == ()


@pytest.mark.parametrize("text", [",0float32", "(,", "no"])
def test_what_is_no_dtype_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(TypeError):
        stream.parse_dtype(text)
    (check,) = prepare_checks([TensorSpec("x", text, (2,))]).values()
    assert check.dtype is None, "the runtime's own check is left"


def test_arrays_are_aligned_read_only_views_that_outlive_the_stream(tmp_path: Path) -> None:
    samples = [{"a": np.ones(3, np.int8), "b": np.arange(5.0)}] * 3
    stream.write_stream(tmp_path / "s", samples)
    arrays = [array for sample in Stream(tmp_path / "s") for array in sample.values()]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert not any(array.flags.writeable or array.flags.owndata for array in arrays)
    assert arrays[-1].sum() == 10


def test_records_are_npy_files(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float16).reshape(2, 3)
    stream.write_stream(tmp_path / "s", [{"x": values}])
    data = (tmp_path / "s").read_bytes()
    with (tmp_path / "x.npy").open("wb") as file:
        file.write(data[data.index(b"\x93NUMPY") :])
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), values)


def test_names_slices_and_bounds(tmp_path: Path) -> None:
    stream.write_stream(tmp_path / "s", [{"a": np.array(i), "b": np.array(i)} for i in range(4)])
    found = Stream(tmp_path / "s")
    assert found.names == ("a", "b")
    assert [int(s["a"]) for s in found[1:3]] == [1, 2]
    assert int(found[-1]["a"]) == 3
    with pytest.raises(IndexError):
        found[4]


def test_text_objects_become_text_and_other_objects_are_refused(tmp_path: Path) -> None:
    stream.write_stream(tmp_path / "s", [{"t": np.array(["a", "bcd"], object)}])
    assert Stream(tmp_path / "s")[0]["t"].tolist() == ["a", "bcd"]
    for bad in (np.array([{}, 1], object), np.zeros(2, [("a", "i4")])):
        with pytest.raises(BadData, match="array 't' holds Python objects"):
            stream.write_stream(tmp_path / "bad", [{"t": bad}])


def test_nothing_is_left_when_a_sample_fails(tmp_path: Path) -> None:
    stream.write_stream(tmp_path / "s", [{"x": np.zeros(3)}])

    def samples():  # type: ignore[no-untyped-def]
        yield {"x": np.ones(3)}
        raise KeyError("broken source")

    with pytest.raises(KeyError):
        stream.write_stream(tmp_path / "s", samples())
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert Stream(tmp_path / "s")[0]["x"].sum() == 0


@pytest.mark.parametrize("data", [b"", b"not a stream", b"ortune-stream-1\n" * 2])
def test_a_file_that_is_not_a_finished_stream_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "s").write_bytes(data)
    with pytest.raises(BadData, match="s"):
        Stream(tmp_path / "s")
    with pytest.raises(BadData, match="cannot read"):
        Stream(tmp_path / "missing")


def test_a_truncated_stream_is_refused(tmp_path: Path) -> None:
    stream.write_stream(tmp_path / "s", [{"x": np.zeros(100)}])
    data = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(data[:-3])
    with pytest.raises(BadData, match="not a finished stream"):
        Stream(tmp_path / "s")


def test_an_unwritable_place_is_two_lines(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OrtuneError, match=r"cannot write .*\n  fix: "):
        stream.write_stream(tmp_path / "file" / "s", [])
