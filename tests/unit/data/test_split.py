from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.core.errors import BadData
from ortune.data.feeds import Feeds
from ortune.data.split import (
    CALIBRATION,
    FEWEST,
    Parts,
    compute_split_minimum,
    count_independent,
    extend_parts,
    find_distinct,
    split_samples,
)


def feeds(
    count: int,
    *,
    digests: list[str] | None = None,
    labels: list[Any] | None = None,
    groups: list[str] | None = None,
) -> Feeds:
    return Feeds(
        Path("none"),
        count,
        tuple(digests or [f"d{at}" for at in range(count)]),
        None if labels is None else tuple(labels),
        None if groups is None else tuple(groups),
    )


def sizes(parts: Parts) -> tuple[int, int, int]:
    return len(parts.calibration), len(parts.search), len(parts.final)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(8, (2, 4, 2)), (200, (50, 100, 50)), (512, (128, 256, 128)), (9000, (128, 4500, 4372))],
)
def test_shares(count: int, expected: tuple[int, int, int]) -> None:
    parts = split_samples(feeds(count))
    assert sizes(parts) == expected
    assert parts.notes == ()


@st.composite
def any_feeds(draw: st.DrawFn) -> Feeds:
    count = draw(st.integers(FEWEST, 120))
    pick = st.lists(st.integers(0, draw(st.integers(3, 150))), min_size=count, max_size=count)
    digests = [f"d{value}" for value in draw(pick)]
    groups = draw(st.none() | pick.map(lambda values: [str(value) for value in values]))
    labels = draw(st.none() | st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return feeds(count, digests=digests, groups=groups, labels=labels)


def together(found: Feeds, parts: tuple[tuple[int, ...], ...]) -> None:
    """No group and no two equal samples are in two parts."""
    for names in (found.digests, found.groups or ()):
        seen = [{names[at] for at in part} for part in parts] if names else []
        for at, one in enumerate(seen):
            for two in seen[at + 1 :]:
                assert not one & two


@settings(deadline=None, max_examples=50)
@given(data=st.data(), count=st.integers(FEWEST, 60))
def test_the_split_follows_contents_not_order(data: st.DataObject, count: int) -> None:
    digests = [f"d{at}" for at in range(count)]
    order = data.draw(st.permutations(digests))
    one, two = (
        split_samples(feeds(count, digests=digests)),
        split_samples(feeds(count, digests=order)),
    )
    for part in ("calibration", "search", "final"):
        assert {digests[at] for at in getattr(one, part)} == {
            order[at] for at in getattr(two, part)
        }


def test_calibration_never_takes_more_than_its_share() -> None:
    groups = [str(at // 10) for at in range(2000)]
    parts = split_samples(feeds(2000, groups=groups))
    assert CALIBRATION - 10 < len(parts.calibration) <= CALIBRATION
    assert 980 <= len(parts.search) <= 1000


@pytest.mark.parametrize(("wanted", "shares"), [(None, (100, 200, 100)), (160, (80, 160, 160))])
def test_classes_are_spread(wanted: int | None, shares: tuple[int, int, int]) -> None:
    labels = [0] * 300 + [1] * 60 + [2] * 40
    parts = split_samples(feeds(400, labels=labels), min_final=wanted)
    assert sizes(parts) == shares
    for part in (parts.calibration, parts.search, parts.final):
        for label, count in Counter(labels[at] for at in part).items():
            assert abs(count - len(part) / 400 * labels.count(label)) <= 1


@pytest.mark.parametrize("labels", [[0] * 12 + [1] * 4, ["a", "b", "c", "d"] * 4])
def test_two_classes_are_spread_and_so_many_that_each_has_four_samples(labels: list[Any]) -> None:
    parts = split_samples(feeds(16, labels=labels))
    for part, share in ((parts.calibration, 4), (parts.search, 2), (parts.final, 4)):
        found = Counter(labels[at] for at in part)
        assert found == {label: n // share for label, n in Counter(labels).items()}


@pytest.mark.parametrize(
    "labels",
    [
        [float(at) for at in range(100)],
        list(range(100)),
        [at % 26 for at in range(100)],
        [0, 1.5] * 50,
        [0, 0, 0, 0, 1, 1, 1, 2],
    ],
)
def test_what_is_no_class_does_not_order_the_split(labels: list[Any]) -> None:
    assert split_samples(feeds(len(labels), labels=labels)) == split_samples(feeds(len(labels)))


def test_sixty_to_forty_with_calibration_apart() -> None:
    parts = split_samples(feeds(1000), feeds(300, digests=[f"c{at}" for at in range(300)]))
    assert sizes(parts) == (300, 600, 400)


def test_few_samples_are_shared_and_it_says_so() -> None:
    parts = split_samples(feeds(FEWEST - 1))
    assert sizes(parts) == (7, 7, 7)
    assert parts.notes[0].startswith("only 7 samples: calibration, search and final")
    parts = split_samples(feeds(7), feeds(2, digests=["c0", "c1"]))
    assert sizes(parts) == (2, 7, 7)
    assert parts.notes[0].startswith("only 7 samples: search and final")


def test_few_groups_are_shared_and_it_says_so() -> None:
    parts = split_samples(feeds(100, groups=["a", "b"] * 50))
    assert sizes(parts) == (100, 100, 100)
    assert "only 2 independent groups" in parts.notes[0]
    parts = split_samples(feeds(FEWEST, groups=["a", "b"] * (FEWEST // 2)))
    assert parts.notes[0].startswith("only 2 independent groups")


def test_three_large_groups_fill_three_parts() -> None:
    parts = split_samples(feeds(300, groups=[str(at % 3) for at in range(300)]))
    assert sizes(parts) == (100, 100, 100)
    assert parts.notes == ()


def test_a_part_that_would_stay_empty_gets_the_smallest_group_of_the_fullest() -> None:
    """The labels put the large group first: it fills the last part, and both others fit one."""
    sized = {"large": 40, "middle": 6, "small": 4}
    groups = [name for name, size in sized.items() for _ in range(size)]
    parts = split_samples(feeds(50, groups=groups, labels=[0] * 40 + [1] * 10))
    assert sizes(parts) == (4, 6, 40)


def test_it_is_the_part_of_most_groups_that_gives_one() -> None:
    groups = [str(at) for at, size in enumerate((1, 3, 8, 1)) for _ in range(size)]
    assert sizes(split_samples(feeds(13, groups=groups))) == (1, 3, 9)


def test_overlap_with_calibration_is_refused() -> None:
    apart = feeds(6, digests=["c0", "d4", "c2", "d7", "d1", "d0"])
    with pytest.raises(BadData) as error:
        split_samples(feeds(10), apart)
    assert "4 calibration samples also in the data" in error.value.what
    assert "1 = 4, 3 = 7, 4 = 1 and 1 more" in error.value.what
    assert len(str(error.value).splitlines()) == 2
    with pytest.raises(BadData) as error:
        split_samples(feeds(10), feeds(3, digests=["d4", "d7", "d1"]))
    assert error.value.what.endswith("from 0: 0 = 4, 1 = 7, 2 = 1)")


@pytest.mark.parametrize(
    ("count", "wanted", "expected"),
    [
        (59, 80, (14, 29, 16)),
        (119, 80, (29, 59, 31)),
        (120, 80, (13, 27, 80)),
        (200, 80, (40, 80, 80)),
        (400, 80, (100, 200, 100)),
        (1600, 408, (128, 800, 672)),
        (1000, 408, (128, 464, 408)),
    ],
)
def test_what_a_proof_needs_is_held_out(
    count: int, wanted: int, expected: tuple[int, int, int]
) -> None:
    assert sizes(split_samples(feeds(count), min_final=wanted)) == expected


def test_where_the_shares_hold_out_enough_they_stay() -> None:
    for wanted in (1, 49, 50):
        assert split_samples(feeds(200), min_final=wanted) == split_samples(feeds(200))
    assert len(split_samples(feeds(200), min_final=51).final) == 51
    groups = [str(at) for at in range(60) for _ in range(1 + at % 7)]
    grouped = feeds(len(groups), groups=groups)
    held = count_independent(grouped, split_samples(grouped).final)
    assert split_samples(grouped, min_final=held) == split_samples(grouped)


@pytest.mark.parametrize(
    ("wanted", "count"), [(1, 17), (5, 21), (32, 48), (33, 50), (34, 51), (80, 120), (408, 612)]
)
def test_a_third_and_twice_the_fewest_are_left_to_choose_on(wanted: int, count: int) -> None:
    assert compute_split_minimum(wanted) == count


def test_what_is_wanted_counts_groups_and_no_more_are_held_out() -> None:
    found = feeds(500, groups=[str(at // 5) for at in range(500)])
    parts = split_samples(found, min_final=60)
    assert count_independent(found, parts.final) == 60
    assert sizes(parts) == (65, 135, 300)


def test_least_is_where_it_begins() -> None:
    for wanted in (1, 5, 17, 80, 408):
        count = compute_split_minimum(wanted)
        assert len(split_samples(feeds(count), min_final=wanted).final) >= wanted
        apart = feeds(5, digests=[f"other{at}" for at in range(5)])
        assert len(split_samples(feeds(count), apart, wanted).final) >= wanted
        fewer = split_samples(feeds(count - 1), min_final=wanted)
        assert len(fewer.final) < wanted or wanted < FEWEST


@settings(deadline=None, max_examples=200)
@given(found=any_feeds(), wanted=st.none() | st.integers(1, 120), apart=st.booleans())
def test_what_is_wanted_is_held_out_in_independent_samples(
    found: Feeds, wanted: int | None, apart: bool
) -> None:
    own = feeds(5, digests=[f"other{at}" for at in range(5)]) if apart else None
    parts = split_samples(found, own, wanted)
    every = range(found.count)
    assert not apart or parts.calibration == (0, 1, 2, 3, 4)
    if parts.notes:
        assert parts.search == parts.final == tuple(every)
        assert apart or parts.calibration == parts.final
        return
    three = (
        (parts.search, parts.final) if apart else (parts.calibration, parts.search, parts.final)
    )
    assert sorted(at for part in three for at in part) == list(every)
    assert all(part and list(part) == sorted(part) for part in three)
    together(found, three)
    if wanted is not None and count_independent(found, every) >= compute_split_minimum(wanted):
        assert count_independent(found, parts.final) >= wanted
    else:
        assert parts == split_samples(found, own)


def test_equal_samples_are_counted_once() -> None:
    found = feeds(6, digests=["a", "b", "a", "c", "b", "a"])
    assert count_independent(found, range(6)) == 3
    assert find_distinct(found, range(6)) == (0, 1, 3)
    assert find_distinct(found, (5, 4, 2)) == (0, 1)
    grouped = feeds(4, groups=["one", "one", "two", "two"])
    assert count_independent(grouped, range(4)) == 2
    assert find_distinct(grouped, range(4)) == (0, 1, 2, 3)


def test_parts_that_grow_keep_their_samples_and_take_no_others() -> None:
    whole = {"search": tuple(range(0, 60, 2)), "final": tuple(range(1, 60, 2))}
    stored = {"search": (0, 20, 40), "final": (1, 31)}
    grown = extend_parts(stored, whole, {"search": 10, "final": 100})
    assert grown is not None
    assert set(stored["search"]) <= set(grown["search"]) <= set(whole["search"])
    assert len(grown["search"]) == 10 and grown["final"] == whole["final"]
    assert grown["search"] == tuple(sorted(grown["search"]))
    assert extend_parts(stored, whole, {"search": 1, "final": 1}) == stored
    assert extend_parts({}, whole, {"search": 2, "final": 0}) == {"search": (0, 30), "final": ()}


def test_parts_that_are_divided_otherwise_now_do_not_grow() -> None:
    whole = {"search": (0, 1, 2), "final": (3, 4)}
    assert (
        extend_parts({"search": (0, 3), "final": (4,)}, whole, {"search": 9, "final": 9}) is None
    )
