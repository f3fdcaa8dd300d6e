"""Ranges of inputs: how they are spelled, found in samples, and said to trtexec."""

from __future__ import annotations

import pytest

from ortune.backends.runtimes.tensorrt import profiles
from ortune.backends.runtimes.tensorrt.profiles import ShapeRange
from ortune.core.errors import BadSettings


@pytest.mark.parametrize(
    ("text", "least", "best", "most"),
    [
        ("x:1x3x8x8", (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8)),
        ("x:1x3..8x3", (1, 3), (8, 3), (8, 3)),
        ("x:1x3..8x3..4x3", (1, 3), (4, 3), (8, 3)),
        ("in:0:1..9", (1,), (9,), (9,)),
        ("sizes=1,2..3,4", (1, 2), (3, 4), (3, 4)),
    ],
)
def test_a_range_is_spelled_and_read(
    text: str, least: tuple[int, ...], best: tuple[int, ...], most: tuple[int, ...]
) -> None:
    (profile,) = profiles.parse_profiles([text])
    (found,) = profile.values()
    assert (found.least, found.best, found.most) == (least, best, most)
    assert found.values == ("=" in text)
    assert str(found) == text
    assert profiles.parse_profiles([str(found)]) == (profile,)


@pytest.mark.parametrize(
    "text", ["x", "x:", "x:1x..2", "x:1..2..3..4", "x:a", "x:2..1", "x:1..3..4", "x:1x2..3", ""]
)
def test_what_is_no_range_is_two_lines(text: str) -> None:
    with pytest.raises(BadSettings) as caught:
        profiles.parse_profiles([text])
    assert len(str(caught.value).splitlines()) == 2


def test_an_input_that_is_named_again_starts_another_profile() -> None:
    found = profiles.parse_profiles(["x:1..4", "x:5..32", "mask:1..32"])
    assert [one["x"].most for one in found] == [(4,), (32,)]
    assert [one["mask"].most for one in found] == [(32,), (32,)]
    with pytest.raises(BadSettings, match="'y' has 2 profiles where another input has 3"):
        profiles.parse_profiles(["x:1", "x:2", "x:3", "y:1", "y:2"])


def test_ranges_are_those_of_the_samples_and_the_commonest_is_best() -> None:
    seen = [{"x": (n, 3), "fixed": (4,)} for n in (2, 8, 2, 1)]
    declared = {"x": ("N", 3), "fixed": (4,)}
    (found,) = profiles.derive_ranges(seen, declared)
    assert found == ShapeRange("x", (1, 3), (2, 3), (8, 3))
    assert str(found) == "x:1x3..8x3..2x3"
    assert (
        found.holds_shape((5, 3))
        and not found.holds_shape((9, 3))
        and not found.holds_shape((5, 3, 1))
    )
    (even,) = profiles.derive_ranges([{"x": (2, 3)}, {"x": (4, 3)}], declared)
    assert even.best == (4, 3)
    assert profiles.derive_ranges([], declared) == ()


def test_trtexec_is_told_the_same() -> None:
    assert profiles.list_trtexec_options(
        profiles.parse_profiles(["x:1x3..8x3..4x3", "in:0:2"])
    ) == ("--minShapes=x:1x3,'in:0':2", "--optShapes=x:4x3,'in:0':2", "--maxShapes=x:8x3,'in:0':2")
    two = profiles.list_trtexec_options(profiles.parse_profiles(["x:1..4", "x:5..8"]))
    assert [one for one in two if one.startswith("--profile")] == ["--profile=0", "--profile=1"]
    assert profiles.list_trtexec_options(()) == ()
