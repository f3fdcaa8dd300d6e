"""Text format: what is written is read back, and a stranger's names stay inside their quotes."""

from __future__ import annotations

import pytest

from ortune.core.errors import BadModel
from ortune.deployment.triton.text import Word, quoted, read, write

MESSAGE = {
    "name": "toy",
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": Word("TYPE_FP32"), "dims": [-1, 4]},
        {"name": "s", "data_type": Word("TYPE_INT64"), "dims": [1], "reshape": {"shape": []}},
    ],
    "optimization": {"graph": {"level": -1}},
    "parameters": [{"key": "a", "value": {"string_value": "1"}}],
    "zero": True,
}


def test_what_is_written() -> None:
    assert write(MESSAGE) == (
        'name: "toy"\nmax_batch_size: 8\n'
        'input {\n  name: "x"\n  data_type: TYPE_FP32\n  dims: [-1, 4]\n}\n'
        'input {\n  name: "s"\n  data_type: TYPE_INT64\n  dims: [1]\n  reshape {\n  }\n}\n'
        "optimization {\n  graph {\n    level: -1\n  }\n}\n"
        'parameters {\n  key: "a"\n  value {\n    string_value: "1"\n  }\n}\nzero: true\n'
    )


def test_it_is_read_back() -> None:
    found = read(write(MESSAGE))
    assert found["name"] == ["toy"] and found["max_batch_size"] == [8]
    assert [one["name"] for one in found["input"]] == [["x"], ["s"]]
    assert found["input"][0]["dims"] == [-1, 4] and found["input"][1]["reshape"] == [{}]
    assert found["optimization"][0]["graph"][0]["level"] == [-1]
    assert found["zero"] == [True]


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\nb", "\x1b[2J", "\u202e", "größe", 'x" } backend: "python', "\x00"]
)
def test_a_strangers_name_stays_in_its_quotes(name: str) -> None:
    text = write({"name": name, "backend": "onnxruntime"})
    assert text.isascii() and text.count("\n") == 2
    assert all(line.isprintable() for line in text.splitlines())
    assert read(text) == {"name": [name], "backend": ["onnxruntime"]}


def test_quotes() -> None:
    assert quoted('a"\\é') == '"a\\042\\134\\303\\251"'


def test_other_spellings_are_read() -> None:
    text = "# said\nname: 'x'\n"
    with pytest.raises(BadModel, match="cannot be read"):
        read(text)
    found = read('# said\ninput: [ { dims: 1 dims: 2 }, { name: "b" } ] # end\nkind: KIND_CPU')
    assert found["input"][0]["dims"] == [1, 2] and found["kind"] == ["KIND_CPU"]


@pytest.mark.parametrize("text", ["a {", "a: [1", "}", "a: }", "1: 2", "a: \x01", "a {" * 40])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadModel, match="cannot be read"):
        read(text)
