"""Ports, tokens and the certificate: what lets requests in, checked before models load."""

import errno
import ipaddress
import re
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import NoReturn, TypeAlias

from ortune.core import regular_file
from ortune.core.errors import BadSettings, summarize_error
from ortune.serving.server.settings import Serve

Warn: TypeAlias = Callable[[str], None]
"""Takes one line that the log shows as a warning."""

_TOKEN_FILE_BYTES = 1 << 16
_TOKEN = re.compile(r"[\x21-\x7e]{8,4096}")
_WRITE_TOKENS = "write one a line; `openssl rand -hex 32` makes one"
_PEM_PAIR = "give a certificate and the key that it was requested with, both PEM files"
_RENEW = "renew the certificate, then start again"
_EXPIRES_SOON_S = 14 * 86400
_EXPIRED, _NOT_YET_VALID = 10, 9
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""
_HANDSHAKE_FLIGHTS = 8
"""Messages that a handshake takes at most."""
_FIRST_USER_PORT = 1024


class Access:
    """The tokens that are accepted; without any, everybody may ask.

    Digests are kept and compared, so that neither a core dump nor the time of a refusal tells one.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = tuple(sha256(token.encode()).digest() for token in tokens)

    @property
    def open(self) -> bool:
        """Whether everybody may ask."""
        return not self._digests

    def allows(self, header: str | None) -> bool:
        """Whether this ``authorization`` header will do; all tokens are compared in any case."""
        if not self._digests:
            return True
        scheme, _, token = (header or "").partition(" ")
        digest = sha256(token.strip().encode(errors="replace")).digest()
        matches = [compare_digest(accepted, digest) for accepted in self._digests]
        return any(matches) and scheme.lower() == "bearer"


def read_tokens(path: str | Path | None, warn: Warn) -> Access:
    """Read a file with a token a line; lines that begin with # and empty ones are passed over.

    Several tokens let one be replaced by another while both are in use. Raises BadSettings: it
    cannot be read, has no token, or one that no header can carry. The error shows no line of it.
    """
    if path is None:
        return Access()
    path = Path(path)
    try:
        with regular_file.open_regular(path, BadSettings) as file:
            lines = file.read(_TOKEN_FILE_BYTES + 1).decode("ascii").splitlines()
            mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no plain text"
        raise BadSettings(f"--token-file {path}: {why}", fix=_WRITE_TOKENS) from None
    numbered = {n: line.strip() for n, line in enumerate(lines, 1) if line.strip()}
    tokens = {number: line for number, line in numbered.items() if line[0] != "#"}
    if not tokens or sum(map(len, lines)) > _TOKEN_FILE_BYTES:
        problem = "has no token" if not tokens else f"is larger than {_TOKEN_FILE_BYTES} bytes"
        raise BadSettings(f"--token-file {path} {problem}", fix=_WRITE_TOKENS)
    for number, token in tokens.items():
        if not _TOKEN.fullmatch(token):
            raise BadSettings(
                f"--token-file {path}: line {number} is no token of 8 characters or more "
                "without spaces",
                fix=_WRITE_TOKENS,
            )
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        warn(f"{path} may be read or written by everybody: chmod 600 {path}")
    return Access(tokens.values())


@dataclass(frozen=True)
class Certificate:
    """A certificate, with those that it was issued by behind it, and its key: PEM files."""

    path: Path
    key: Path


def check_certificate(
    path: str | Path | None, key: str | Path | None, warn: Warn
) -> Certificate | None:
    """Try a certificate and its key by a handshake with itself; None where neither is given.

    Raises BadSettings: one of both is missing, cannot be read or is encrypted; they do not fit;
    the certificate has expired, is not valid yet, or is not for servers.
    """
    if path is None and key is None:
        return None
    if path is None or key is None:
        present, missing = "--tls-cert", "--tls-key"
        if path is None:
            present, missing = missing, present
        raise BadSettings(f"{present} is given without {missing}", fix=f"give {missing} too")
    path, key = Path(path), Path(key)

    def refuse_encrypted() -> NoReturn:
        raise BadSettings(
            f"--tls-key {key} is encrypted, and nobody is there to type its password",
            fix=f"decrypt it: `openssl pkey -in {key} -out plain.pem`",
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for file in (path, key):
            regular_file.require_regular(file, BadSettings)
        context.load_cert_chain(path, key, password=refuse_encrypted)
    except OSError as error:
        problem = f"--tls-cert {path} with --tls-key {key}: {summarize_error(error)}"
        raise BadSettings(problem, fix=_PEM_PAIR) from None
    expires = _shake_hands(context, path)
    if expires - time.time() < _EXPIRES_SOON_S:
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires))
        warn(f"certificate {path} expires on {day}")
    return Certificate(path, key)


def _shake_hands(server: ssl.SSLContext, path: Path) -> float:
    """Shake hands with a client that trusts this certificate; return when it expires."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # clients know the name that they ask for
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(path)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(down, up)
    sides = (client_side, server.wrap_bio(up, down, server_side=True))
    try:
        for _ in range(_HANDSHAKE_FLIGHTS):
            for side in sides:
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLError as error:
        when = {_EXPIRED: "has expired", _NOT_YET_VALID: "is not valid yet: check the clock"}
        why = when.get(
            getattr(error, "verify_code", 0), f"is refused by clients: {summarize_error(error)}"
        )
        raise BadSettings(f"certificate {path} {why}", fix=_RENEW) from None
    return float(ssl.cert_time_to_seconds(str((client_side.getpeercert() or {})["notAfter"])))


@dataclass(frozen=True)
class Address:
    """Where one front end listens: a number and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def bind_socket(self) -> socket.socket:
        """Return a socket on it that shares its port, also among processes; OSError if refused."""
        return _bind_socket(self.host, self.port, shared=True)


def reserve_port(host: str, port: int, option: str, stack: ExitStack) -> Address:
    """Take a port for one front end, of one process or of several; 0 takes any free one.

    A socket that shares with nobody sees whoever listens there: one of our own processes would
    share its port with another server of the same user. The socket that keeps the port does not
    listen; those that do are beside it by SO_REUSEPORT. Without that option of the system the port
    is free until a front end takes it. `option` names what the port was given by; `stack` gives it
    back. Raises BadSettings: the host is none of this machine, or the port is not to be had.
    """
    number = resolve_host(host)
    try:
        with _bind_socket(number, port, shared=False) as alone:
            port = int(alone.getsockname()[1])
        if hasattr(socket, "SO_REUSEPORT"):
            stack.enter_context(_bind_socket(number, port, shared=True))
    except OSError as error:
        problem = f"{option} {port} of {host}: {error.strerror or error}"
        fix = f"give another {option} (0 takes any free one)"
        if error.errno == errno.EADDRINUSE:
            problem = f"port {port} of {number} is taken"
            fix += f", or end what listens there: `ss -ltnp sport = :{port}`"
        elif error.errno == errno.EACCES and port < _FIRST_USER_PORT:
            problem = f"port {port} belongs to the system, and this user may not listen there"
            fix = f"give {option} a port from {_FIRST_USER_PORT} on"
        elif error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            problem, fix = f"--host {host} is no address of this machine", "give one of `ip a`"
        raise BadSettings(problem, fix=fix) from None
    return Address(number, port)


def resolve_host(host: str) -> str:
    """Return a host's number, IPv4 where it has both; BadSettings where there is no such host."""
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise BadSettings(
            f"--host {host} is not known", fix="give an address of this machine, or 127.0.0.1"
        ) from None
    return str(min(entries, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def _bind_socket(number: str, port: int, *, shared: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # where it shares the port with anybody
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared and hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((number, port))
    except BaseException:
        sock.close()
        raise
    return sock


@dataclass(frozen=True)
class Listeners:
    """How requests come in: by TLS with a certificate, and where HTTP or gRPC are not off."""

    access: Access
    certificate: Certificate | None
    http: Address | None
    grpc: Address | None

    @property
    def url(self) -> str | None:
        """URL of the HTTP front end; None where it is off."""
        scheme = "http" if self.certificate is None else "https"
        return None if self.http is None else f"{scheme}://{self.http}"


def open_listeners(
    request: Serve, warn: Warn, http: Address | None, grpc: Address | None
) -> Listeners:
    """Read tokens and certificate, for taken ports; BadSettings where one cannot be used."""
    access = read_tokens(request.token_file, warn)
    certificate = check_certificate(request.tls_cert, request.tls_key, warn)
    return Listeners(access, certificate, http, grpc)


def reserve_listeners(request: Serve, warn: Warn, stack: ExitStack) -> Listeners:
    """Take the ports, until `stack` gives them back, and read tokens and certificate.

    Raises BadSettings: one is not to be had, or cannot be used.
    """
    host, http, grpc = request.host, None, None
    if not request.http and not request.grpc:
        raise BadSettings("HTTP and gRPC are both off", fix="leave out --no-http or --no-grpc")
    if request.http:
        http = reserve_port(host, request.http_port, "--http-port", stack)
    if request.grpc:
        grpc = reserve_port(host, request.grpc_port, "--grpc-port", stack)
    listeners = open_listeners(request, warn, http, grpc)
    if address := http or grpc:
        local = ipaddress.ip_address(address.host.partition("%")[0]).is_loopback
        if not local and listeners.access.open:
            warn(f"whoever reaches {host} may ask: give --token-file, --tls-cert and --tls-key")
        elif not local and listeners.certificate is None:
            warn("tokens travel in clear text: give --tls-cert and --tls-key")
    return listeners
