"""Check a bundle's signature by its owner's public key."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.core.fields import Option
from ortune.core.request import Request, request


@request
class _Options(Request):
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


@make_command(_Options)
def command(options: _Options) -> None:
    """Say by whom it is signed."""
    from ortune.bundle.engine.signing import signature_of, verify_signature

    verify_signature(options.bundle, options.key)
    result = {
        "bundle": options.bundle,
        "key": options.key,
        "signature": signature_of(Path(options.bundle)),
    }
    print_result(
        result,
        lambda: print_text(f"{options.bundle}: signed by the owner of {options.key}, unchanged"),
    )
