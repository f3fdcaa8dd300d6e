"""Where a server listens: ``http://HOST:PORT`` or ``grpc://HOST:PORT``, with TLS an ``s``."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from ortune.core.errors import BadSettings

_PORTS = {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 443}


@dataclass(frozen=True)
class ServerUrl:
    """One port of a server.

    Attributes:
        protocol: ``http`` or ``grpc``.
        tls: Encrypted.
    """

    protocol: str
    host: str
    port: int
    tls: bool = False

    @property
    def netloc(self) -> str:
        """Host and port as URLs have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.tls else ''}://{self.netloc}"


def is_url(text: str) -> bool:
    """Whether a text is meant as a server's address, not as a file."""
    return "://" in text


def read(text: str) -> ServerUrl:
    """Read an address.

    Raises:
        BadSettings: It is none.
    """
    try:
        found = urlsplit(text)
        port = found.port
    except ValueError:
        found, port = urlsplit(""), None
    if found.scheme not in _PORTS or not found.hostname or found.path.strip("/"):
        raise BadSettings(
            f"'{text}' is no address of a server",
            fix="write http://HOST:PORT or grpc://HOST:PORT; https and grpcs for TLS",
        )
    name = found.scheme
    return ServerUrl(name[:4], found.hostname, port or _PORTS[name], tls=len(name) == 5)
