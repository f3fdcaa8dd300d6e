"""Actions done and timed: each result goes to its own action, a failure to build says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.analysis.profiling.test_roofline import CEILINGS

import ortune
from ortune.analysis.profiling import advice as subject
from ortune.core.backend import Backend
from ortune.core.profile import Action, Profile
from ortune.core.trial import Interval

ACTIONS = (
    Action("quantize", "a", "", steps=("simplify", "int8-dynamic")),
    Action("added", "b", ""),
    Action("fuse", "c", "", steps=("fuse-layer-norm",)),
    Action("threads", "d", "", backend="cpu(threads=2)"),
)


def test_every_result_goes_to_its_own_action(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def race(contestants: Sequence[tuple[Path, Backend]], **_: Any) -> SimpleNamespace:
        assert all(path.is_file() for path, _ in contestants)
        seen.extend((path.name, str(backend)) for path, backend in contestants)
        ratios = [Interval(v, v - 0.1, v + 0.1) for v in (1.0, 0.5)]
        return SimpleNamespace(ratios=[*ratios, None], rows=[{}, {}, {"error": "SIGSEGV"}])

    monkeypatch.setattr(subject, "race_contestants", race)
    source = Path(ortune.__path__[0]) / "data" / "zoo" / "digit_cnn.onnx"
    profile = Profile(str(source), "cpu(threads=1)", (), 1, 1.0, 1.0, ceilings=CEILINGS)
    one, two, three, four = subject.evaluate_suggestions(profile, ACTIONS)
    assert seen == [
        ("digit_cnn.onnx", "cpu(threads=1)"),
        ("0.onnx", "cpu(threads=1)"),
        ("digit_cnn.onnx", "cpu(threads=2)"),
    ]
    assert one.measured is not None and (one.measured.value, one.note) == (0.5, "")
    assert (two.measured, two.note) == (None, "")
    assert three.measured is None and "changes nothing" in three.note
    assert four.measured is None and "SIGSEGV" in four.note


def test_nothing_to_do_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "race_contestants", None)
    source = Path(ortune.__path__[0]) / "data" / "zoo" / "digit_cnn.onnx"
    profile = Profile(str(source), "cpu(threads=1)", (), 1, 1.0, 1.0)
    assert subject.evaluate_suggestions(profile, ACTIONS[1:2]) == ACTIONS[1:2]
    assert subject.suggest(profile) == ()
