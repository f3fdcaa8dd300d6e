"""Which names patterns stand for, without a model: those of a stranger's run."""

from __future__ import annotations

import pytest

from ortune.quantizers.common.node_filter import literally, names


@pytest.mark.parametrize("name", ["a", "b[0]", "a*", "what?", "re:a", "/plain/conv.1", "[r]", ""])
def test_a_literal_pattern_is_one_name(name: str) -> None:
    held = names((literally(name), "other"))
    assert held(name)
    assert held("other")
    assert not held(f"{name}x")


def test_wild_patterns_match_as_in_a_shell() -> None:
    held = names(("*/attention/*", "c?", "literal"))
    assert held("/layer.1/attention/MatMul")
    assert held("c1")
    assert not held("c12")
    assert not names(())("c1")


def test_regular_expressions_are_not_run() -> None:
    assert not names(("re:.*", "re:(a+)+$"))("a" * 40)
