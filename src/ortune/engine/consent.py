"""Code that a bundle brings or names, which runs only when the caller says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins import stored
from ortune.core.plugins.user_function import is_factory
from ortune.engine.manifest import Manifest, PackedPlan

_LIBRARIES = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""How shared libraries of Linux, Windows and macOS begin."""


def demand(name: str, manifest: Manifest, allowed: bool) -> None:
    """Refuse a bundle with code of its own that the caller did not allow.

    Raises:
        BadSettings: It has some; the text names it.
    """
    named = operators(manifest.custom_ops)
    if not named or allowed:
        return
    found = [
        f"{text.rpartition('/')[2]} (sha256 {manifest.members[text].sha256[:16]})"
        if text in manifest.members
        else f"the Python module {text}"
        for text in named
    ]
    raise BadSettings(
        f"{name} runs code of its own, custom operators: {', '.join(found)}",
        fix="if you trust where it comes from: load(path, custom_ops=True), or "
        "--allow-custom-ops on the command line",
    )


def operators(named: Sequence[str]) -> tuple[str, ...]:
    """Return the libraries of custom operators among the code that is named."""
    return tuple(text for text in named if not is_factory(text))


def factories(named: Sequence[str]) -> tuple[str, ...]:
    """Return the functions, ``pkg.module:factory``, that make a plan's model in Python."""
    return tuple(text for text in named if is_factory(text))


def placed(backend: Backend, plan: PackedPlan, manifest: Manifest, folder: Path) -> Backend:
    """Return a plan's settings so that they name the unpacked libraries.

    Raises:
        BadModel: They name code that the manifest does not list for it.
    """
    listed(backend, plan.custom_ops)
    if not backend.custom_ops:
        return backend
    return replace(backend, custom_ops=libraries(backend.custom_ops, manifest, folder))  # type: ignore[call-arg]


def listed(backend: Backend, libraries: Sequence[str]) -> None:
    """Refuse settings that name other code than what a bundle lists for them.

    Raises:
        BadModel: They do.
    """
    fields: Mapping[str, Any] = {name: getattr(backend, name) for name in backend.reads}
    named = (
        (name, text)
        for name, held in fields.items()
        for text in ([held] if isinstance(held, str) else held)
    )
    # A library is for custom operators alone, whatever else a backend would load of that name.
    strange = sorted(
        text
        for name, text in named
        if text and (text not in libraries or is_factory(text) == (name == "custom_ops"))
    )
    if strange:
        raise BadModel(
            f"its settings name '{strange[0]}', which its manifest does not",
            fix=stored.DISTRUST,
        )


def is_code(path: Path) -> bool:
    """Say whether a file is what a bundle may carry as a library: a shared library, or Python."""
    with path.open("rb") as file:
        return path.suffix == ".py" or file.read(4).startswith(_LIBRARIES)


def libraries(named: tuple[str, ...], manifest: Manifest, folder: Path) -> tuple[str, ...]:
    """Return where the bundle's libraries were unpacked; installed modules keep their names."""
    return tuple(
        str(folder / text) if text in manifest.members else text for text in operators(named)
    )
