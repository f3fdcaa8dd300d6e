"""A certificate and its key, tried in memory before anything listens."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ortune.core.errors import BadSettings, gist

_RENEW = "renew the certificate, then start again"
_SOON_S = 14 * 86400
_EXPIRED, _NOT_YET = 10, 9
"""What OpenSSL says of a certificate's time: X509_V_ERR_CERT_HAS_EXPIRED, _NOT_YET_VALID."""
_FLIGHTS = 8
"""Messages that a handshake takes at most."""


@dataclass(frozen=True)
class Certificate:
    """A certificate, with those that it was issued by behind it, and its private key: PEM files.

    Attributes:
        expires: Seconds since 1970.
    """

    path: Path
    key: Path
    expires: float


def certificate(
    path: str | Path | None, key: str | Path | None, warn: Callable[[str], None]
) -> Certificate | None:
    """Try a certificate and its key by a handshake with itself; None where neither is given.

    Args:
        warn: Is told of a certificate that ends soon.

    Raises:
        BadSettings: One of both is missing, cannot be read or is encrypted; they do not fit; the
            certificate has expired, is not valid yet, or is not for servers.
    """
    if path is None and key is None:
        return None
    if path is None or key is None:
        given, missing = (
            ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        )
        raise BadSettings(f"{given} is given without {missing}", fix=f"give {missing} too")
    path, key = Path(path), Path(key)
    expires = _shaken(_loaded(path, key), path)
    if expires - time.time() < _SOON_S:
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires))
        warn(f"certificate {path} expires on {day}")
    return Certificate(path, key, expires)


def _loaded(path: Path, key: Path) -> ssl.SSLContext:
    """Return a server's context with both."""

    def encrypted() -> NoReturn:
        raise BadSettings(
            f"--tls-key {key} is encrypted, and nobody is there to type its password",
            fix=f"decrypt it: `openssl pkey -in {key} -out plain.pem`",
        )

    for option, one in (("--tls-cert", path), ("--tls-key", key)):
        try:
            text = one.read_bytes()
        except OSError as error:
            raise BadSettings(
                f"{option} {one}: {error.strerror or error}", fix="give a PEM file"
            ) from None
        if b"-----BEGIN " not in text:
            raise BadSettings(f"{option} {one} is no PEM file", fix="convert it with openssl")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path, key, password=encrypted)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            what = f"--tls-key {key} is not the key of certificate {path}"
            raise BadSettings(what, fix="give the key that it was requested with") from None
        what = f"--tls-cert {path} with --tls-key {key}: {gist(error)}"
        raise BadSettings(what, fix="give a certificate and its key, both PEM files") from None
    return context


def _shaken(server: ssl.SSLContext, path: Path) -> float:
    """Shake hands with a client that trusts this certificate; return when it expires.

    Raises:
        BadSettings: No client would take it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # clients know the name that they ask for
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(path)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up)
    sides = (asking, server.wrap_bio(up, down, server_side=True))
    try:
        for _ in range(_FLIGHTS):
            for side in sides:
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        when = {_EXPIRED: "has expired", _NOT_YET: "is not valid yet: check the clock"}
        told = when.get(error.verify_code, f"is refused by clients: {error.verify_message}")
        raise BadSettings(f"certificate {path} {told}", fix=_RENEW) from None
    except ssl.SSLError as error:
        raise BadSettings(
            f"certificate {path} cannot be used: {gist(error)}", fix=_RENEW
        ) from None
    return float(ssl.cert_time_to_seconds(str((asking.getpeercert() or {})["notAfter"])))
