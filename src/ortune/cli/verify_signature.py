"""Check a bundle's signature by its owner's public key."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say
from ortune.core.fields import Option
from ortune.core.request import Request, request


@request
class _Asked(Request):
    """Refuse BUNDLE where the owner of KEY did not sign it as it is.

    Example:
        ortune verify-signature model.ortune --key public.pem

    Attributes:
        bundle: A bundle; its signature lies beside it, NAME.ortune.sig.
        key: The public key, a PEM file.
    """

    bundle: str | Path
    _: KW_ONLY
    key: Annotated[str | Path, Option("PUBLIC.pem")]


@verb(_Asked)
def command(asked: _Asked) -> None:
    """Say by whom it is signed."""
    from ortune.bundle.engine.signing import signature_of, verify_signature

    verify_signature(asked.bundle, asked.key)
    result = {
        "bundle": asked.bundle,
        "key": asked.key,
        "signature": signature_of(Path(asked.bundle)),
    }
    answer(result, lambda: say(f"{asked.bundle}: signed by the owner of {asked.key}, unchanged"))
