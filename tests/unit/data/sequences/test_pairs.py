"""States are found by the conventions of names, or named; what cannot be one is refused."""

import pytest

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data.sequences.rolling import StatePair, find_state_pairs, parse_state_pairs


def tensors(*names: str, shape: tuple[int | str | None, ...] = (1, 8)) -> list[TensorSpec]:
    return [TensorSpec(name, "float32", shape) for name in names]


@pytest.mark.parametrize(
    ("output", "into"),
    [
        ("present.0.key", "past_key_values.0.key"),
        ("present_key_values.3.value", "past_key_values.3.value"),
        ("present.2.decoder.key", "past_key_values.2.decoder.key"),
        ("present_0", "past_0"),
        ("stateN", "state"),
        ("hn", "h0"),
        ("cn", "c0"),
        ("h_n", "h_0"),
        ("h_out", "h_in"),
        ("h_out", "h"),
        ("out_state", "in_state"),
        ("output_states", "input_states"),
        ("stateOut", "stateIn"),
        ("STATE_OUT", "STATE_IN"),
        ("new_cache", "cache"),
        ("next_h", "prev_h"),
        ("cache_k_out_3", "cache_k_in_3"),
        ("updated_memory", "memory"),
    ],
)
def test_the_common_conventions_pair(output: str, into: str) -> None:
    assert find_state_pairs(tensors("x", into), tensors("y", output)) == (StatePair(output, into),)


def test_pairs_come_in_the_order_of_the_inputs_and_every_tensor_is_in_one() -> None:
    found = find_state_pairs(tensors("x", "h0", "c0"), tensors("y", "cn", "hn"))
    assert found == (StatePair("hn", "h0"), StatePair("cn", "c0"))


@pytest.mark.parametrize("names", [("output", "input"), ("output_1", "input_1"), ("y", "x")])
def test_an_answer_is_no_state_of_what_is_asked(names: tuple[str, str]) -> None:
    with pytest.raises(BadData) as error:
        find_state_pairs(tensors(names[1]), tensors(names[0]))
    assert "--state OUT:IN" in error.value.fix


def test_another_type_or_shape_is_no_pair_by_its_name() -> None:
    half = [TensorSpec("hn", "float16", (1, 8))]
    for outputs in (half, tensors("hn", shape=(1, 9)), tensors("hn", shape=(1, 8, 1))):
        with pytest.raises(BadData):
            find_state_pairs(tensors("h0"), outputs)
    assert find_state_pairs(tensors("h0"), tensors("hn", shape=(None, "width"))) == (
        StatePair("hn", "h0"),
    )


def test_named_states_are_taken_alone_and_names_may_hold_colons() -> None:
    inputs, outputs = tensors("in:0", "h0", "m"), tensors("out:0", "hn", "other")
    assert parse_state_pairs(["out:0:in:0", "other:m"], inputs, outputs) == (
        StatePair("out:0", "in:0"),
        StatePair("other", "m"),
    )


def test_a_star_stands_for_the_same_part() -> None:
    inputs, outputs = tensors("x", "k.0", "k.1"), tensors("y", "new.0", "new.1", "new.2")
    assert parse_state_pairs(["new.*:k.*"], inputs, outputs) == (
        StatePair("new.0", "k.0"),
        StatePair("new.1", "k.1"),
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hn", "cannot read state 'hn'"),
        (":h0", "cannot read state"),
        ("nn:h0", "the model has no output 'nn'"),
        ("hn:h1", "the model has no input 'h1'"),
        ("z*:h*", "fits no output and input"),
        ("y:h0", "the output is float32 [1, 3], the input float32 [1, 8]"),
    ],
)
def test_what_is_no_state_is_refused(text: str, what: str) -> None:
    outputs = [*tensors("hn"), TensorSpec("y", "float32", (1, 3))]
    with pytest.raises(BadData) as error:
        parse_state_pairs([text], tensors("h0"), outputs)
    assert what in error.value.what
    assert error.value.fix


def test_an_input_takes_one_state() -> None:
    with pytest.raises(BadData, match="input 'h0' is in two states"):
        parse_state_pairs(["hn:h0", "gn:h0"], tensors("h0"), tensors("hn", "gn"))
