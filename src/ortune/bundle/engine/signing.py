"""Sign a bundle and demand its signature: ECDSA, in a file beside it, by model-signing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.core import regular_file
from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadModel, BadSettings, OrtuneError, summarize_error
from ortune.core.plugins import stored

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = 1 << 20
"""Bytes of a signature; one has 2,000."""
_MAKE = "make one with `openssl ecparam -name prime256v1 -genkey -noout -out key.pem`"
_PUBLIC = "give the public half: `openssl ec -in key.pem -pubout -out public.pem`"
_DISTRUST = "ask its owner for the bundle and for the key that it was signed with"


def signature_of(bundle: Path) -> Path:
    """Return where a bundle's signature lies: beside it."""
    return bundle.with_name(f"{bundle.name}.sig")


def make_signer(key: Path) -> Callable[[Path, bool], Path]:
    """Read a private key and return what signs a bundle with it, replacing a signature if told.

    Two signatures of the same bytes differ: a signature has a random number in it. Raises
    BadSettings: it is no key that can sign; OrtuneError: the package is not installed.
    """
    with _wrap_key_errors(key, "private", _MAKE):
        signing, _ = _import_signing()
        config = signing.Config().use_elliptic_key_signer(private_key=key)

    def sign(bundle: Path, force: bool) -> Path:
        place = signature_of(bundle)
        with open_output_draft(place, force=force, sources=[bundle, key]) as draft:
            config.sign(bundle.resolve(), draft)
        return place

    return sign


def verify_signature(path: str | Path, key: str | Path) -> None:
    """Refuse a bundle that the owner of a key did not sign, or that was changed since.

    The signature lies beside it, NAME.ortune.sig. It is of every byte of the file.

    Args:
        path: A bundle.
        key: The public key, a PEM file: P-256, P-384 or P-521.

    Raises:
        BadModel: There is no signature, it is by another key, or of another file.
        BadSettings: The key is no public key of these kinds.
        OrtuneError: Package model-signing is not installed.
    """
    path, key = Path(path), Path(key)
    with _wrap_key_errors(key, "public", _PUBLIC):
        regular_file.require_regular(key, BadSettings)
        _, verifying = _import_signing()
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    place = signature_of(path)
    # A signature that is missing, huge, or that does not say by which key it is, is refused.
    if not place.is_file():
        raise BadModel(
            f"{path.name} is not signed, and a signature is required: there is no {place.name}",
            fix=_DISTRUST,
        )
    try:
        signature: Any = stored.parse_json(regular_file.read_bytes(place, _MOST, BadModel))
        if not isinstance(signature["verificationMaterial"]["publicKey"]["hint"], str):
            raise ValueError("it names no key")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadModel(
            f"{place.name} cannot be read as a signature: {summarize_error(error)}", fix=_DISTRUST
        ) from error
    try:
        config.verify(path.resolve(), place)
    except Exception as error:  # of many kinds: the file is hostile until it holds
        raise BadModel(
            f"{path.name}: its signature does not match this file and '{key}': "
            f"{_shorten_reason(error)}",
            fix=_DISTRUST,
        ) from error


@contextmanager
def _wrap_key_errors(key: Path, half: str, fix: str) -> Iterator[None]:
    """Say in two lines what is wrong with a key, whatever the package raises."""
    try:
        yield
    except OrtuneError:
        raise
    except Exception as error:
        why = "wrong kind of key" if isinstance(error, AttributeError) else _shorten_reason(error)
        raise BadSettings(
            f"'{key}' is not a usable {half} key (PEM; P-256, P-384 or P-521): {why}", fix=fix
        ) from error


def _shorten_reason(error: Exception) -> str:
    """Return the reason alone: cryptography goes on for lines about what may have been."""
    reason = getattr(error, "strerror", None) or next(map(str, error.args), "")
    return re.split(r"[.:]", summarize_error(reason), maxsplit=1)[0] or type(error).__name__


def _import_signing() -> tuple[Any, Any]:
    """Import what signs and what verifies; seconds, so only where it is asked for."""
    try:
        from model_signing import signing, verifying
    except ImportError as error:
        raise OrtuneError(
            f"signatures need package model-signing: {summarize_error(error)}",
            fix="pip install model-signing pyopenssl",
        ) from error
    return signing, verifying
