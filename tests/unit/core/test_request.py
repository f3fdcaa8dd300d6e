"""A request is converted and checked once; signature, help and options are made of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import Annotated, Literal

import pytest

import ortune as ot
from ortune.core import settings
from ortune.core.custom_ops import BackendRequest
from ortune.core.errors import BadSettings, OrtuneError, Unexpected
from ortune.core.fields import ByteSize, Counts, Duration, InputRanges, InputShapes, Option
from ortune.core.request import (
    DataRequest,
    Request,
    list_request_fields,
    make_verb,
    read_help,
    request,
)


@request
class Toast(BackendRequest, DataRequest):
    """Toast BREAD.

    Both sides at once.

    Example:
        ortune toast bread.onnx

    Attributes:
        bread: What is toasted.
        time: How long; a minute is
            usual.
        levels: Of heat.
        memory: Of the toaster.
        form: Of the slices.
        share: Of the crust.

    Raises:
        OrtuneError: It burns.
    """

    bread: str | Path
    _: KW_ONLY
    time: Duration = Duration("1m")
    levels: Counts = Counts((), Option("N,...", "--level"))
    memory: ByteSize = ByteSize(None)
    form: Literal["round", "square"] | None = None
    share: Annotated[float, Option(low=0, high=1)] = 0.5


def run(asked: Toast) -> Toast:
    """Return what was asked."""
    return asked


toast = make_verb(Toast, run)


def test_values_are_given_natively_or_spelled() -> None:
    spelled = toast("b", time="90s", levels="1, 8", memory="4k", shapes=["x:1x3"], ranges="x:0..1")
    native = toast(
        "b", time=90, levels=[1, 8], memory=4096, shapes={"x": [1, 3]}, ranges={"x": (0, 1)}
    )
    assert spelled == native
    assert spelled.time == 90 and spelled.levels == (1, 8) and spelled.memory == 4096
    assert replace(spelled, share=0.1).time == 90


def test_an_argument_that_is_wrong_is_refused_by_the_name_of_the_function() -> None:
    with pytest.raises(TypeError, match=r"^toast\(\): .*unexpected keyword argument 'tyme'"):
        toast("b", tyme="90s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^toast\(\): missing a required argument: 'bread'"):
        toast()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"time": "soon"}, "time: cannot read the duration 'soon'"),
        ({"time": -1}, "time: "),
        ({"share": 2}, "share: 2 is too large"),
        ({"share": float("nan")}, "share: nan is not a finite number"),
        ({"form": "oval"}, "form: 'oval' is not allowed"),
        ({"levels": "1,a"}, "levels: 'a' is not a number"),
        ({"shapes": ["x:1", "x:2"]}, "shapes: two shapes for input 'x'"),
        ({"memory": "lots"}, "memory: cannot read the size 'lots'"),
    ],
)
def test_an_error_names_the_field(given: dict[str, object], said: str) -> None:
    with pytest.raises(BadSettings) as error:
        toast("b", **given)  # type: ignore[arg-type]
    assert error.value.what.startswith(said) and error.value.fix


def test_the_function_has_the_signature_and_the_words_of_the_request() -> None:
    found = inspect.signature(toast)
    assert next(iter(found.parameters)) == "bread" and "sink" in found.parameters
    assert found.parameters["time"].default == "1m"
    assert found.parameters["time"].kind is inspect.Parameter.KEYWORD_ONLY
    assert toast.__name__ == "toast" and toast.__module__ == __name__
    words = inspect.getdoc(toast) or ""
    assert words.startswith("Toast BREAD.\n\nBoth sides") and "OrtuneError: It burns." in words
    assert "    time: How long; a minute is usual.\n" in words and "Example" not in words
    assert read_help(Toast) == ("Toast BREAD.\n\nBoth sides at once.", "ortune toast bread.onnx")


def test_a_request_is_written_and_read_as_a_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    asked = Toast(Path("b"), data="data", time=180, shapes={"x": (1, 3)}, levels=[1, 2])
    found = tomllib.loads(settings.format_settings(asked, but={"on"}))
    assert found == {
        "bread": str(tmp_path / "b"),
        "data": str(tmp_path / "data"),
        "time": "3m",
        "shapes": ["x:1x3"],
        "levels": "1,2",
        "share": 0.5,
    }
    again = Toast(found.pop("bread"), **found)
    assert again == replace(asked, bread=again.bread, data=again.data)


def test_an_unknown_key_of_a_settings_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("spam = 1\n")
    with pytest.raises(OrtuneError, match="spam"):
        settings.read_settings(path, [one.name for one in list_request_fields(Toast)])


NAMES = (
    "apply bench calibrate compare compare_observers convert cost extract inspect optimize "
    "profile timeline tune verify"
)
VERBS = [getattr(ot, name) for name in NAMES.split()]


@pytest.mark.parametrize("function", VERBS, ids=lambda one: str(one.__name__))
def test_every_field_has_a_line_in_the_docstring(function: object) -> None:
    words = inspect.getdoc(function) or ""
    for name in inspect.signature(function).parameters:  # type: ignore[arg-type]
        entry = next(line for line in words.splitlines() if line.startswith(f"    {name}: "))
        assert len(entry) > len(name) + 8


def test_requests_are_read_without_a_heavy_package() -> None:
    kinds = "benchmark calibration_quality costs inspection padding profiling tuning verification"
    modules = [f"analysis.{kind}.requests" for kind in kinds.split()]
    modules += ["analysis.conversion.requests", "search.request"]
    code = "import sys\n" + "\n".join(f"import ortune.{one}" for one in modules)
    code += "\nsys.exit(','.join({'numpy', 'onnx_ir', 'rich', 'click'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_range_of_an_input_may_be_negative() -> None:
    assert DataRequest(ranges=["x:-9..9"]).ranges == {"x": (-9.0, 9.0)}
    with pytest.raises(BadSettings, match="not a finite number"):
        DataRequest(ranges={"x": (float("-inf"), 0.0)})


@request
class Break(Request):
    """Break.

    Attributes:
        model: A file.
        others: More.
    """

    model: str
    others: tuple[str, ...] = ()


def test_a_bug_behind_a_function_is_told_with_its_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")

    def run(asked: Break) -> None:
        raise RecursionError("too deep\n at x")

    with pytest.raises(Unexpected, match="unexpected RecursionError: too deep at x") as error:
        make_verb(Break, run)(str(path), (str(path), "a word"))
    assert error.value.what.startswith(f"{path}: unexpected")
    assert isinstance(error.value.__cause__, RecursionError)
    assert "report it" in error.value.fix


@pytest.mark.parametrize("error", [OSError(28, "full"), BadSettings("no", fix="yes")])
def test_what_a_function_foresees_comes_out_as_it_is(error: Exception) -> None:
    def run(asked: Break) -> None:
        raise error

    with pytest.raises(type(error)) as found:
        make_verb(Break, run)("m.onnx")
    assert found.value is error


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("3m", 180), ("1h30m", 5400), ("0.5m", 30)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert Duration(1).read(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "3x", "-3m", "m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OrtuneError, match="duration"):
        Duration(1).read(text)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("2k", 2048), ("1.5G", 1610612736)])
def test_bytes(text: str, count: int) -> None:
    assert ByteSize(None).read(text) == count


def test_shapes_are_parsed() -> None:
    texts = ["x:1x3x320x320", "input:0:2", "rate:"]
    assert InputShapes(None).read(texts) == {"x": (1, 3, 320, 320), "input:0": (2,), "rate": ()}
    assert InputShapes(None).read([]) == {}


def test_ranges_are_parsed() -> None:
    texts = ["ids:0..30521", "x:-1.5..1e3", "input:0:.5..2", "rate:16000"]
    assert InputRanges(None).read(texts) == {
        "ids": (0, 30521),
        "x": (-1.5, 1000),
        "input:0": (0.5, 2),
        "rate": (16000, 16000),
    }


@pytest.mark.parametrize("text", ["x", "x:1x", ":1x2", "x:1x-2", "x:axb", "x:1,2", ""])
def test_shapes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadSettings, match=r"cannot read shape .*\n  fix: write input:1x3x320x320"):
        InputShapes(None).read([text])


@pytest.mark.parametrize("text", ["x", "x:", "x:a..b", "x:1-2", ":1..2", "x:1..", "x:nan"])
def test_ranges_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadSettings, match=r"cannot read range .*\n  fix: "):
        InputRanges(None).read([text])


def test_ranges_and_shapes_that_make_no_sense() -> None:
    with pytest.raises(BadSettings, match="ends before it begins"):
        InputRanges(None).read(["x:2..1"])
    with pytest.raises(BadSettings, match="two ranges for input 'x'"):
        InputRanges(None).read(["x:1..2", "x:1..2"])
    with pytest.raises(BadSettings, match="two shapes for input 'x'"):
        InputShapes(None).read(["x:1", "x:2"])
