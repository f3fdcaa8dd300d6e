"""The command-line grammar of plugins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadSettings, OrtuneError, UnknownPlugin
from ortune.core.plugins import codec, spelling
from ortune.core.step import Quantizer
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.observers.percentile import Percentile

NAMES = st.text('abcdefghijklmnopqrstuvwxyzABC_-.:/(),=[]" ', max_size=12)


@given(
    st.integers(0, 2),
    st.sampled_from(["disabled", "basic", "extended", "all"]),
    st.lists(NAMES, max_size=3).map(tuple),
)
def test_every_backend_is_read_back_from_its_spelling(
    threads: int, level: str, disable: tuple[str, ...]
) -> None:
    made = Cpu(threads=threads, level=level, disable=disable)  # type: ignore[arg-type]
    assert spelling.parse_plugin(Backend, str(made)) == made


@given(st.floats(50, 100, exclude_min=True), st.booleans())
def test_plugins_nest(p: float, per_channel: bool) -> None:
    made = Int8Static(observer=Percentile(p=p), per_channel=per_channel)
    assert spelling.parse_plugin(Quantizer, str(made)) == made


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_two_lines(text: str) -> None:
    try:
        spelling.parse_plugin(Backend, text)
    except OrtuneError as error:
        assert error.what
        assert error.fix


def test_pinned_fields_are_those_written_out() -> None:
    found = spelling.parse_list(Backend, "cpu(threads=2), reference")
    assert [(str(b), sorted(given)) for b, given in found] == [
        ("cpu(threads=2)", ["threads"]),
        ("reference", []),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpuu", "no backend 'cpuu'"),
        ("cpu(treads=4)", "has no field 'treads'"),
        ("cpu(threads=many)", "is not an integer"),
        ("cpu(threads=true)", "is not an integer"),
        ("cpu(level=max)", "is not allowed"),
        ("cpu(threads=1", "expected at column"),
        ("cpu(threads=1, threads=2)", "twice"),
        ("cpu) ", "the end expected"),
        ("", "a name expected"),
        ("cpu(disable=[Skip*])", "',' or ']' expected"),
    ],
)
def test_wrong_spellings_say_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises((BadSettings, UnknownPlugin)) as caught:
        spelling.parse_plugin(Backend, text)
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("text", "again", "bound"),
    [
        ("cosine>=0.999", "cosine>=0.999", 0.999),
        ("top1 >= base-0.01", "top1>=base-0.01", 0.79),
        ("max-error<=1e-3", "max-error<=0.001", 0.001),
        ("snr>=base", "snr>=base", 0.8),
        ("cosine >= 0.999 | 0.99", "cosine>=0.999|0.99", 0.999),
        ("max-error<=0.1|0.2|1", "max-error<=0.1|0.2|1", 0.1),
        ("top1>=base|base-0.01", "top1>=base|base-0.01", 0.8),
    ],
)
def test_budgets_are_read_and_written(text: str, again: str, bound: float) -> None:
    budget = Budget.parse(text)
    assert str(budget) == again
    assert budget.bound(0.8) == pytest.approx(bound)
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("top1", "cannot read budget"),
        ("top1<=0.9", "higher top1 is better"),
        ("max-error>=0.1", "lower max-error is better"),
        ("cosine>=lots", "cannot read the limit 'lots'"),
        ("cosin>=0.9", "no metric 'cosin'"),
        ("cosine>=0.99|", "'' is not a limit"),
        ("cosine>=0.999|snr>=30", "'snr>=30' is not a limit"),
        ("cosine>=0.99|0.999", "each limit must be looser"),
        ("cosine>=0.99|0.99", "each limit must be looser"),
        ("max-error<=0.2|0.1", "each limit must be looser"),
        ("top1>=base-0.01|0.8", "some of its limits are relative"),
        ("cosine>=0.99|x", "cannot read the limit 'x'"),
        ("cosine>=0.9|0.8|0.7|0.6|0.5", "has 5 limits"),
    ],
)
def test_wrong_budgets_say_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(OrtuneError) as caught:
        Budget.parse(text)
    assert said in caught.value.what


def test_the_fix_of_steps_in_the_wrong_order_works() -> None:
    with pytest.raises(BadSettings) as caught:
        Budget.parse("cosine>=0.99|0.999")
    budget = Budget.parse(caught.value.fix.removeprefix("write "))
    assert list(map(str, budget.steps)) == ["cosine>=0.999", "cosine>=0.99"]


def test_a_budget_of_one_limit_is_stored_as_in_runs_from_before_steps() -> None:
    budget = Budget.parse("cosine>=0.99")
    assert "looser" not in codec.encode(budget)
    steps = Budget.parse("cosine>=0.999|0.99")
    assert codec.decode(Budget, codec.encode(steps)) == steps


def test_a_backend_may_say_where_it_runs() -> None:
    text = "cpu, openvino(threads=1) in vino-2026.4,cpu(level=basic)in  old"
    found = spelling.parse_placed(Backend, text)
    assert [(str(one), at) for one, _, at in found] == [
        ("cpu", "here"),
        ("openvino(threads=1)", "vino-2026.4"),
        ("cpu(level=basic)", "old"),
    ]
    assert spelling.read_environments("auto, openvino in vino") == {"openvino": "vino"}
    assert spelling.read_environments("cpu,openvino") == {}
    written = spelling.with_field("cpu(level=basic) in old,openvino", "threads", 2)
    assert written == "cpu(level=basic, threads=2) in old,openvino(threads=2)"


@pytest.mark.parametrize(
    "text", ["cpu in", "cpu in ../x", "cpu in a b", "cpu in A", "in vino", "cpu in in vino"]
)
def test_a_place_is_a_word(text: str) -> None:
    with pytest.raises(OrtuneError):
        spelling.parse_placed(Backend, text)
    with pytest.raises(BadSettings):
        spelling.parse_list(Backend, "cpu in vino")
