"""Check whether a bundle's outputs and speed are still as packed."""

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_parts, print_result, print_text
from ortune.core.fields import File, Option
from ortune.core.request import Request, request
from ortune.reporting.python.requests import RecheckPage


@request
class _SignatureOptions(Request):
    """Check the signature and nothing else: nothing is read from the bundle, and nothing runs.

    The bundle is refused where the owner of --require-signature did not sign it as it is.

    Example:
        ortune recheck model.ortune --require-signature public.pem --signature-only
    """

    bundle: File
    _: KW_ONLY
    require_signature: Annotated[str | Path, Option("PUBLIC.pem")]


@make_command(RecheckPage, {"signature_only": _SignatureOptions})
def command(request: RecheckPage | _SignatureOptions) -> int:
    """Show what was replayed; exit code 1 when something changed."""
    if isinstance(request, _SignatureOptions):
        return _check_signature(Path(request.bundle), request.require_signature)
    from ortune.reporting.python.recheck import build_recheck_parts, run

    result = run(request)
    print_result(result, lambda: print_parts(build_recheck_parts(result)))
    return DONE if result.good else NO


def _check_signature(bundle: Path, key: str | Path) -> int:
    """Say by whom a bundle is signed."""
    from ortune.bundle.engine.archive import signature_of, verify_signature

    verify_signature(bundle, key)
    result = {"bundle": bundle, "key": key, "signature": signature_of(bundle)}
    print_result(result, lambda: print_text(f"{bundle}: signed by the owner of {key}, unchanged"))
    return DONE
