"""Steps by their spelling, whichever kind they are."""

from __future__ import annotations

import difflib

from ortune.core.errors import UnknownPlugin
from ortune.core.plugins import catalog, user_file
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Step, Transform

_EXAMPLES = "use a transform such as simplify, or a quantizer such as int8-static"
_LISTED = "docs/rewriting.md and docs/quantizing.md list them"


def step(text: str) -> Step:
    """Read a transform or a quantizer; a transform may be the user's own, ``FILE.py:NAME``.

    Raises:
        UnknownPlugin: There is neither of that name.
        BadSettings: A field is wrong, or the user's file does not run.
    """
    name = text.partition("(")[0].strip()
    transforms, quantizers = catalog.names(Transform), catalog.names(Quantizer)
    if name in transforms or user_file.names_file(name):
        return parse(Transform, text)
    if name in quantizers:
        return parse(Quantizer, text)
    close = difflib.get_close_matches(name, [*transforms, *quantizers], n=3)
    told = f"use one of: {', '.join(close)}" if close else f"{_EXAMPLES}; {_LISTED}"
    raise UnknownPlugin(f"no step '{name}'", fix=told)
