"""What `import ortune` offers."""

from __future__ import annotations

import pkgutil

import ortune

NAMES = [name for name in dir(ortune) if not name.startswith("_")]


def test_no_public_name_is_also_a_folder() -> None:
    folders = {info.name for info in pkgutil.iter_modules(ortune.__path__)}
    assert not folders & set(NAMES), "folders are nouns, public functions are verbs"


def test_every_public_name_resolves_and_stays() -> None:
    assert len(NAMES) > 20
    for name in (*NAMES, *NAMES):
        assert getattr(ortune, name).__module__.startswith("ortune.")
    assert set(NAMES) <= set(dir(ortune))
