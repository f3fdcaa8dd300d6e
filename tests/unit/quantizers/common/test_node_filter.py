"""Which names patterns stand for, without a model: those of a stranger's run."""

import pytest

from ortune.quantizers.common.nodes import escape_pattern, make_name_matcher


@pytest.mark.parametrize("name", ["a", "b[0]", "a*", "what?", "re:a", "/plain/conv.1", "[r]", ""])
def test_a_literal_pattern_is_one_name(name: str) -> None:
    held = make_name_matcher((escape_pattern(name), "other"))
    assert held(name)
    assert held("other")
    assert not held(f"{name}x")


def test_wild_patterns_match_as_in_a_shell() -> None:
    held = make_name_matcher(("*/attention/*", "c?", "literal"))
    assert held("/layer.1/attention/MatMul")
    assert held("c1")
    assert not held("c12")
    assert not make_name_matcher(())("c1")


def test_regular_expressions_are_not_run() -> None:
    assert not make_name_matcher(("re:.*", "re:(a+)+$"))("a" * 40)
