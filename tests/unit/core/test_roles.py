"""Quantizers are found by the role that they declare."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ortune.core.plugins import catalog
from ortune.core.roles import (
    Role,
    find_deciding_step,
    find_plugin,
    find_step_role,
    make_static_int8,
)
from ortune.core.step import Quantizer, Transform
from ortune.quantizers.int8_static import Int8Static


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.HALVES])
def test_every_role_is_declared_by_one_plugin(role: Role) -> None:
    declared = [
        cls
        for base in (Quantizer, Transform)
        for name in catalog.list_plugins(base)
        if vars(cls := catalog.load_plugin(base, name)).get("role") is role
    ]
    assert len(declared) == 1
    kind = Quantizer if issubclass(declared[0], Quantizer) else Transform
    assert find_plugin(kind, role) is declared[0]


def test_what_inherits_a_role_does_not_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(Int8Static):
        """The same, and earlier by name."""

    names, load = catalog.list_plugins, catalog.load_plugin
    monkeypatch.setattr(catalog, "list_plugins", lambda base: ["a-mine", *names(base)])
    monkeypatch.setattr(
        catalog, "load_plugin", lambda base, name: Mine if name == "a-mine" else load(base, name)
    )
    assert type(make_static_int8()) is Int8Static


def test_a_role_that_nothing_plays_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "list_plugins", lambda base: [])
    assert find_plugin(Quantizer, Role.ROUNDS) is None


def test_the_last_quantizer_that_does_more_than_prepare_decides() -> None:
    rounds, clips = (find_plugin(Quantizer, role) for role in (Role.ROUNDS, Role.CLIPS))
    equalizes, dynamic = (
        find_plugin(Transform, Role.EQUALIZES),
        find_plugin(Quantizer, Role.DYNAMIC),
    )
    assert rounds and clips and equalizes and dynamic
    assert (
        find_step_role(rounds()) is Role.ROUNDS and find_step_role(equalizes()) is Role.EQUALIZES
    )
    assert find_deciding_step(()) is None
    assert find_deciding_step((equalizes(), rounds())) is None
    assert find_deciding_step((clips(), rounds(), make_static_int8())) == 2
    assert find_deciding_step((make_static_int8(), dynamic(), clips())) == 1
