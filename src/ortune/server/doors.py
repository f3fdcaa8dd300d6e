"""What is checked before models are loaded: tokens, the certificate, ports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from ortune.core.errors import BadSettings
from ortune.server.access import Access, access
from ortune.server.addresses import Address, is_loopback, reserve
from ortune.server.settings import Serve
from ortune.server.tls import Certificate, certificate


@dataclass(frozen=True)
class Doors:
    """How requests come in.

    Attributes:
        access: Who may ask.
        certificate: For both front ends; None for clear text.
        http: Where HTTP listens; None where it is off.
        grpc: Where gRPC listens; None where it is off.
    """

    access: Access
    certificate: Certificate | None
    http: Address | None
    grpc: Address | None

    @property
    def url(self) -> str | None:
        """Of HTTP."""
        scheme = "http" if self.certificate is None else "https"
        return None if self.http is None else f"{scheme}://{self.http}"


def opened(
    asked: Serve, warn: Callable[[str], None], http: Address | None, grpc: Address | None
) -> Doors:
    """Read tokens and certificate, for ports that are taken already.

    Raises:
        BadSettings: One cannot be used.
    """
    tokens = access(asked.token_file, warn)
    return Doors(tokens, certificate(asked.tls_cert, asked.tls_key, warn), http, grpc)


def taken(asked: Serve, warn: Callable[[str], None], stack: ExitStack) -> Doors:
    """Read tokens and certificate, and take the ports.

    Args:
        warn: Is told what lets others in.
        stack: Gives the ports back.

    Raises:
        BadSettings: One is not to be had, or cannot be used.
    """
    if not asked.http and not asked.grpc:
        raise BadSettings("--no-http and --no-grpc leave nothing", fix="leave one of both out")

    def address(wanted: bool, port: int, option: str) -> Address | None:
        if not wanted:
            return None
        found = reserve(asked.host, port, option)
        stack.callback(found.close)
        return found.address

    found = opened(
        asked,
        warn,
        address(asked.http, asked.http_port, "--http-port"),
        address(asked.grpc, asked.grpc_port, "--grpc-port"),
    )
    listening = found.http or found.grpc
    if listening is not None and not is_loopback(listening.host):
        _warn_of_others(found, asked.host, warn)
    return found


def _warn_of_others(doors: Doors, host: str, warn: Callable[[str], None]) -> None:
    if doors.access.open:
        warn(f"whoever reaches {host} may ask: give --token-file, with --tls-cert and --tls-key")
    elif doors.certificate is None:
        warn("tokens travel in clear text: give --tls-cert and --tls-key")
