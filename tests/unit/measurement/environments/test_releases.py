"""The table of releases, and how some of it are named."""

from __future__ import annotations

import pytest

from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.plugins.spelling import parse
from ortune.measurement.environment import folder
from ortune.measurement.environments.releases import FAMILIES, Release, chosen, every, release


def test_every_release_is_pinned_and_has_a_name_of_its_own() -> None:
    found = every()
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert folder(one.name).name == one.name
        assert one.distributions[0] == str(one)
        assert all(text.count("==") == 1 for text in one.distributions)
        packages = [text.partition("==")[0] for text in one.distributions]
        assert len(set(packages)) == len(packages)
        assert {"numpy", "psutil"} <= set(packages)
        assert all(parse(Backend, name) for name in one.family.backends)


def test_they_stand_in_order() -> None:
    for family in FAMILIES.values():
        numbers = [tuple(map(int, version.split("."))) for version in family.beside]
        assert numbers == sorted(numbers)


def test_one_is_read() -> None:
    found = release(" onnxruntime == 1.24.4 ")
    assert found == Release("onnxruntime", "1.24.4")
    assert found.name == "ort-1.24.4"
    assert release("openvino==2026.4.1").name == "openvino-2026.4.1"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("onnxruntime==1.2.3", "no release '1.2.3' of onnxruntime"),
        ("onnxruntime", "no release '' of onnxruntime"),
        ("../../bin/sh==1", "is no release"),
        ("pip==23", "is no release"),
        ("--index-url=x", "is no release"),
    ],
)
def test_what_is_not_in_the_table_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        release(text)


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("1.24..1.26", ["1.24.4", "1.25.1", "1.26.0"]),
        ("1.31..1.31", ["1.31.0", "1.31.1"]),
        ("1.31.1..1.32", ["1.31.1", "1.32.0"]),
        ("1..1.23", ["1.23.2"]),
        ("1.31.1, 1.24.4", ["1.24.4", "1.31.1"]),
        ("1.30.0,1.30.0", ["1.30.0"]),
    ],
)
def test_some_are_chosen_oldest_first(text: str, versions: list[str]) -> None:
    assert [one.version for one in chosen(text)] == versions


@pytest.mark.parametrize(
    "text", ["1.31..1.24", "2.0..2.1", "1.24..", "..1.24", "1.x..1.31", "1.24", ",", "new..old"]
)
def test_a_choice_that_names_none_is_refused(text: str) -> None:
    with pytest.raises(BadSettings):
        chosen(text)
