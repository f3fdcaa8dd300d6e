"""What a verb returns shows its figures, escaped, and becomes a DataFrame."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

import ortune
from ortune.core.errors import OrtuneError
from ortune.core.plugins import codec
from ortune.core.result import Result, TableResult
from ortune.core.trial import Interval


@dataclass(frozen=True, repr=False)
class _Plain(Result):
    model: str
    latency_ns: tuple[int, ...]

    def summary(self) -> Mapping[str, object]:
        return {"model": self.model, "ratio": Interval(0.5, 0.4, 0.6), "seconds": 1 / 3}


@dataclass(frozen=True, repr=False)
class _Rows(TableResult):
    names: tuple[str, ...]

    def summary(self) -> Mapping[str, object]:
        return {"names": len(self.names), "best": None}

    def records(self) -> Sequence[Mapping[str, object]]:
        return [{"name": name, "length": len(name)} for name in self.names]


@dataclass(frozen=True, repr=False)
class _Measured(_Rows):
    def records(self) -> Sequence[Mapping[str, object]]:
        return [
            {**row, "took_ns": 1_234_567.8, "empty": None, "size": 3000, "why": "so " * 50}
            for row in super().records()
        ]


def test_a_result_shows_its_figures_and_not_its_samples() -> None:
    assert repr(_Plain("a.onnx", (1, 2, 3))).splitlines() == [
        "_Plain",
        "  model    a.onnx",
        "  ratio    0.500 [0.400, 0.600]",
        "  seconds  0.33333",
    ]


def test_a_table_prints_what_a_person_reads() -> None:
    shown = repr(_Measured(tuple("x" * length for length in (3, 60, *range(12))))).splitlines()
    assert shown[:6] == [
        "_Measured",
        "  names  14",
        "  best   -",
        f"  name{' ' * 40}  length  took ms    size",
        f"  xxx{' ' * 41}       3    1.235  3.0 kB",
        f"  ...{'x' * 41}      60    1.235  3.0 kB",
    ]
    assert shown[-2:] == ["  columns not shown: why", "  rows not shown: 4"]
    assert repr(_Rows(())).splitlines() == ["_Rows", "  names  0", "  best   -"]


def _every(kind: type[Result]) -> Iterator[type[Result]]:
    for one in kind.__subclasses__():
        yield one
        yield from _every(one)


def test_no_generated_repr_hides_the_short_one() -> None:
    for name in dir(ortune):
        getattr(ortune, name)
    found = list(_every(Result))
    assert len(found) > 5
    shown = (Result.__repr__, TableResult.__repr__)
    assert [one for one in found if one.__repr__ not in shown] == []


def test_json_is_made_of_the_fields() -> None:
    assert codec.encode(_Plain("a.onnx", (1, 2))) == {"model": "a.onnx", "latency_ns": [1, 2]}


def test_html_is_escaped_and_short() -> None:
    shown = _Rows(("<b>", *map(str, range(30))))._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<td>best</td><td>-</td>" in shown
    assert "<th>name</th><th>length</th>" in shown
    assert "rows not shown: 11" in shown
    assert "<th>" not in _Rows(())._repr_html_()
    assert "<td>a&amp;b</td>" in _Plain("a&b", ())._repr_html_()


def test_rows_become_a_dataframe() -> None:
    pandas = pytest.importorskip("pandas")
    frame = _Rows(("a", "bc")).to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["length"]) == [1, 2]


def test_without_pandas_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OrtuneError, match="pandas is not installed"):
        _Rows(()).to_dataframe()
