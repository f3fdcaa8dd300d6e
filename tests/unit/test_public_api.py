"""What `import ortune` offers."""

from __future__ import annotations

import pkgutil

import ortune

NAMES = set(dir(ortune)) - {"__version__"}


def test_no_public_name_is_also_a_folder() -> None:
    folders = {info.name for info in pkgutil.iter_modules(ortune.__path__)}
    assert not folders & NAMES, "folders are nouns, public functions are verbs"


def test_every_public_name_resolves_and_stays() -> None:
    for name in (*NAMES, *NAMES):
        assert getattr(ortune, name).__module__.startswith("ortune.")
    assert len(NAMES) > 30 and set(dir(ortune)) >= NAMES
