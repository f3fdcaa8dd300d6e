"""Ports to listen on, taken before models are loaded: what is in the way is said at once."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from ortune.core.errors import BadSettings

_FIRST_FREE = 1024
"""Lower ports belong to the system."""


@dataclass(frozen=True)
class Address:
    """Where one front end listens.

    Attributes:
        host: As a number.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Reserved:
    """A port that is kept for one front end, of one process or of several.

    The socket does not listen; those that do are beside it by SO_REUSEPORT. Without that option
    of the system the port is free until a front end takes it.
    """

    def __init__(self, address: Address, kept: socket.socket | None) -> None:
        self.address = address
        self._kept = kept

    def close(self) -> None:
        """Give the port back."""
        if self._kept is not None:
            self._kept.close()


def reserve(host: str, port: int, option: str) -> Reserved:
    """Take a port.

    Whoever listens there is seen by a socket that shares with nobody: one of our own processes
    would share its port with another server of the same user.

    Args:
        host: A name or a number.
        port: 0 takes any free one.
        option: For messages: what the port was given by.

    Raises:
        BadSettings: The host is none of this machine, or the port is not to be had.
    """
    number = resolve(host)
    try:
        with _bound(number, port, shared=False) as alone:
            port = int(alone.getsockname()[1])
        kept = _bound(number, port, shared=True) if hasattr(socket, "SO_REUSEPORT") else None
    except OSError as error:
        raise _refused(error, host, Address(number, port), option) from None
    return Reserved(Address(number, port), kept)


def listener(address: Address) -> socket.socket:
    """Return a socket on a port that is reserved; several processes may have one each.

    Raises:
        OSError: The system refuses.
    """
    return _bound(address.host, address.port, shared=hasattr(socket, "SO_REUSEPORT"))


def resolve(host: str) -> str:
    """Return the number of a host, version 4 of the protocol where it has both.

    Raises:
        BadSettings: There is no such host.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise BadSettings(
            f"--host {host} is not known", fix="give an address of this machine, or 127.0.0.1"
        ) from None
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])


def is_loopback(number: str) -> bool:
    """Whether only this machine can reach an address."""
    return ipaddress.ip_address(number.partition("%")[0]).is_loopback


def _bound(number: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in number else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((number, port))
    except BaseException:
        made.close()
        raise
    return made


def _refused(error: OSError, host: str, address: Address, option: str) -> BadSettings:
    if error.errno == errno.EADDRINUSE:
        return BadSettings(
            f"port {address.port} of {address.host} is taken",
            fix=f"give another {option} (0 takes any free one), or end what listens there: "
            f"`ss -ltnp sport = :{address.port}`",
        )
    if error.errno == errno.EACCES and address.port < _FIRST_FREE:
        return BadSettings(
            f"port {address.port} belongs to the system, and this user may not listen there",
            fix=f"give {option} a port from {_FIRST_FREE} on",
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return BadSettings(
            f"--host {host} is no address of this machine", fix="give 127.0.0.1, or one of `ip a`"
        )
    return BadSettings(
        f"{option} {address.port} of {host}: {error.strerror or error}", fix="give another port"
    )
