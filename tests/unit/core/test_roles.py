"""Quantizers are found by the role that they declare."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ortune.core.plugins import catalog
from ortune.core.roles import Role, deciding, find, role, static_int8
from ortune.core.step import Quantizer, Transform
from ortune.quantizers.int8_static import Int8Static


@pytest.mark.parametrize("role", Role)
def test_every_role_is_declared_by_one_plugin(role: Role) -> None:
    declared = [
        cls
        for base in (Quantizer, Transform)
        for name in catalog.names(base)
        if vars(cls := catalog.load(base, name)).get("role") is role
    ]
    assert len(declared) == 1
    kind = Quantizer if issubclass(declared[0], Quantizer) else Transform
    assert find(kind, role) is declared[0]


def test_what_inherits_a_role_does_not_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(Int8Static):
        """The same, and earlier by name."""

    names, load = catalog.names, catalog.load
    monkeypatch.setattr(catalog, "names", lambda base: ["a-mine", *names(base)])
    monkeypatch.setattr(
        catalog, "load", lambda base, name: Mine if name == "a-mine" else load(base, name)
    )
    assert type(static_int8()) is Int8Static


def test_a_role_that_nothing_plays_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "names", lambda base: [])
    assert find(Quantizer, Role.ROUNDS) is None


def test_the_last_quantizer_that_does_more_than_prepare_decides() -> None:
    rounds, clips = (find(Quantizer, role) for role in (Role.ROUNDS, Role.CLIPS))
    equalizes, dynamic = find(Transform, Role.EQUALIZES), find(Quantizer, Role.DYNAMIC)
    assert rounds and clips and equalizes and dynamic
    assert role(rounds()) is Role.ROUNDS and role(equalizes()) is Role.EQUALIZES
    assert deciding(()) is None
    assert deciding((equalizes(), rounds())) is None
    assert deciding((clips(), rounds(), static_int8())) == 2
    assert deciding((static_int8(), dynamic(), clips())) == 1
