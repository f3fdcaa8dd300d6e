"""Write programs that open a model with a plan's settings and answer a sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from ortune.deployment.languages.language import CPP, Language, lines
from ortune.deployment.languages.settings import SessionSettings

_TEMPLATES = files("ortune.deployment.languages") / "programs"
_FROM_FILE = "str(model)"
FROM_BYTES = "model.read_bytes()"
"""How the Python program loads a model whose file is to be read by the caller."""


def write(
    folder: Path,
    languages: Iterable[Language],
    settings: SessionSettings,
    *,
    model: str = _FROM_FILE,
) -> None:
    """Write the program of each language below a folder.

    Args:
        folder: Of the package.
        languages: Which.
        settings: Set in each, or said to be impossible there.
        model: What the Python program gives to the runtime.
    """
    for language in languages:
        path = folder / language.file
        values = {"settings": lines(language, settings), "model": model}
        put(path, f"{path.name}.txt", values)
        if language is CPP:
            put(path.with_name("ort_api.h"), "ort_api.h.txt", {})


def put(path: Path, template: str, values: Mapping[str, str]) -> None:
    """Write a program from a template of this folder; its ``$word``s take the values."""
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    filled = Template(text).substitute(values) if values else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(filled, encoding="utf-8")
