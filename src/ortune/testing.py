"""The contract every plugin keeps, for third parties to hold theirs to.

In a test of a package that carries plugin folders (entry point group ``ortune.plugins``)::

    import pytest
    from ortune import testing

    @pytest.mark.parametrize(("folder", "name"), testing.entries())
    def test_contract(folder, name):
        testing.check_contract(folder, name)
"""

from __future__ import annotations

import dataclasses
import json

from ortune.core.plugins import catalog, codec, spelling
from ortune.core.plugins.plugin import Plugin


def entries() -> list[tuple[str, str]]:
    """Return folder and name of every plugin that is installed, ortune's own included."""
    return [
        (folder, name)
        for folder in catalog.BASES
        for name in catalog.list_plugins(catalog.base_of(folder))
    ]


def check_contract(folder: str, name: str) -> None:
    """Check one plugin: frozen, documented, all defaults given, the same through text and JSON.

    Raises:
        AssertionError: It breaks the contract; the message says how.
    """
    base = catalog.base_of(folder)
    cls: type[Plugin] = catalog.load_plugin(base, name)
    fields = dataclasses.fields(cls)
    documented = "\n".join(c.__doc__ or "" for c in cls.__mro__)
    loose = [f.name for f in fields if _has_no_default(f)]
    silent = [f.name for f in fields if f"{f.name}:" not in documented]
    _assert_holds(cls.__dataclass_params__.frozen, f"{name} is not frozen")  # type: ignore[attr-defined]
    _assert_holds((cls.__doc__ or "").strip(), f"{name} does not say what it does")
    _assert_holds(not loose, f"{name} has fields without a default: {', '.join(loose)}")
    _assert_holds(not silent, f"{name}'s Attributes: leaves out {', '.join(silent)}")
    plugin = cls()
    again = codec.decode(base, json.loads(json.dumps(codec.encode(plugin))))
    _assert_holds(again == plugin and hash(again) == hash(plugin), f"{name} changes through JSON")
    _assert_holds(
        spelling.parse_plugin(base, str(plugin)) == plugin, f"{name} changes through its spelling"
    )
    _assert_holds(cls.name() == name, f"{name} is named {cls.name()}")


def _has_no_default(field: dataclasses.Field[object]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _assert_holds(holds: object, message: str) -> None:
    if not holds:
        raise AssertionError(message)
