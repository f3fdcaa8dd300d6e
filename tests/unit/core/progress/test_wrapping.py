"""Text is broken between words, at any width."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from ortune.core.progress.wrapping import longest_word, wrap_text

NAME = "/model/encoder/layers.11/attention/self/query/MatMul"
TEXT = f"the first tensor that leaves the budget is {NAME}, made by two nodes of layer eleven"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_and_words_are_whole(width: int) -> None:
    lines = wrap_text(TEXT, width, "  ")
    assert max(map(cell_len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == TEXT
    assert all(line.startswith("  ") for line in lines[1:])


@pytest.mark.parametrize("width", [1, 20, 40])
def test_a_name_wider_than_the_terminal_is_whole_on_a_line_of_its_own(width: int) -> None:
    assert f"{NAME}," in [line.strip() for line in wrap_text(TEXT, width)]
    assert longest_word(TEXT) == len(NAME) + 1


def test_line_breaks_and_indents_stay() -> None:
    text = "what is wrong\n  fix: do this or that"
    assert wrap_text(text, 80) == text.split("\n")
    assert wrap_text(text, 14) == ["what is wrong", "  fix: do this", "  or that"]
    assert wrap_text("", 10) == [""] and longest_word("") == 0


def test_wide_letters_count_twice() -> None:
    assert wrap_text("\u6a21\u578b \u6a21\u578b", 8) == ["\u6a21\u578b", "\u6a21\u578b"]
