"""The page of the first five minutes is followed by each of its users, as it stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.speed.first_minutes import LONGEST_S, NEEDS, USERS, follow, list_steps


def play(user: str, folder: Path, shorter: str) -> float:
    for package in NEEDS.get(user, ()):
        pytest.importorskip(package.partition("==")[0])
    return sum(follow(user, folder, sys.executable, shorter))


@pytest.mark.parametrize("user", USERS)
def test_at_most_five_commands(user: str) -> None:
    assert 1 < len(list_steps(user)) <= 5


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    play("deployment engineer", tmp_path, "2s")


@pytest.mark.long
@pytest.mark.timeout(2 * LONGEST_S)
@pytest.mark.parametrize("user", USERS)
def test_it_takes_less_than_five_minutes(tmp_path: Path, user: str) -> None:
    assert play(user, tmp_path, "") < LONGEST_S
