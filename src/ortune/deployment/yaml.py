"""YAML of mappings, lists and scalars; texts are quoted as in JSON, which is YAML too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ortune.core.errors import BadModel

_STEP = "  "


def write(value: Mapping[str, Any], indent: str = "") -> str:
    """Return a mapping as text; keys are plain words."""
    lines = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            lines.append(f"{indent}{key}:\n{write(item, indent + _STEP)}")
        elif isinstance(item, Sequence) and not isinstance(item, str):
            lines.append(f"{indent}{key}: {json.dumps(list(item))}\n")
        else:
            lines.append(f"{indent}{key}: {json.dumps(item)}\n")
    return "".join(lines)


def read(text: str) -> dict[str, Any]:
    """Read what `write` wrote.

    Raises:
        BadModel: It is not that.
    """
    root: dict[str, Any] = {}
    open_: list[dict[str, Any]] = [root]
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // len(_STEP)
        key, colon, value = line.strip().partition(":")
        if not colon or depth >= len(open_):
            raise BadModel(f"the YAML cannot be read at '{line}'", fix="pack again")
        del open_[depth + 1 :]
        if value.strip():
            try:
                open_[depth][key] = json.loads(value)
            except ValueError as error:
                raise BadModel(f"the YAML cannot be read: {error}", fix="pack again") from None
        else:
            open_.append({})
            open_[depth][key] = open_[-1]
    return root
