"""The first five hundred inputs of every reader, and that the watch sees what it is there for."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ortune.core.errors import OrtuneError
from tests.fuzz.__main__ import SEED
from tests.fuzz.target import Case, Target
from tests.fuzz.targets import READERS, TARGETS
from tests.fuzz.watch import watch

COUNT = 500


@pytest.mark.parametrize("name", READERS)
def test_nothing_breaks(name: str) -> None:
    found = [seen.finding for seen in watch(READERS[name], SEED, range(COUNT)) if seen.finding]
    shown = [f"input {one.index}: {one.kind} {one.where}\n{one.text}" for one in found[:3]]
    assert not found, "\n\n".join(shown)


def test_commands_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.commands.PATIENCE", 6.0)  # other tests run beside it
    target = TARGETS["commands"]
    some = [*range(0, len(target.corpus()), 9), len(target.corpus())]
    found = [seen.finding for seen in watch(target, SEED, some) if seen.finding]
    assert not found, "\n\n".join(f"{one.index}: {one.where}\n{one.text}" for one in found)


def _read(case: Case, folder: Path) -> None:
    kind = case.words[0]
    if kind == "refuse":
        raise OrtuneError("it is wrong", fix="mend it")
    if kind == "raise":
        raise KeyError(kind)
    if kind == "die":
        os.abort()
    if kind == "hold":
        np.ones(150 << 20)
    if kind == "ask":
        np.empty(1 << 40)
    if kind == "swallow":
        with suppress(MemoryError):
            np.empty(1 << 40)
    if kind == "tell":
        try:
            np.empty(1 << 40)
        except MemoryError as error:
            raise OrtuneError("it does not fit into memory", fix="free some") from error
    if kind == "spin":
        until = time.process_time() + 20
        while time.process_time() < until:
            pass


KINDS = ("fine", "refuse", "raise", "die", "hold", "ask", "swallow", "tell", "spin", "fine")


def test_the_watch_sees_what_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.watch.SECONDS", 3.0)
    monkeypatch.setattr("tests.fuzz.watch.MAKING", 1.0)
    cases = [lambda kind=kind: Case(kind, words=(kind,)) for kind in KINDS]  # type: ignore[misc]
    target = Target("toy", lambda: cases, lambda rng: Case(""), _read)
    seen = [one.finding.kind if one.finding else "" for one in watch(target, 0, range(len(KINDS)))]
    assert seen == ["", "", "exception", "died", *["memory"] * 3, "", "time", ""]


@pytest.mark.parametrize("name", READERS)
def test_an_input_is_the_same_every_time(name: str) -> None:
    target = READERS[name]
    first = len(target.corpus())
    for index in (0, max(first - 1, 0), first, first + 7):
        assert target.case(SEED, index) == target.case(SEED, index)
