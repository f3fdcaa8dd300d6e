"""Ports, tokens and certificates: what is wrong is said in two lines before anything listens."""

import errno
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.certificates import pair

from ortune.core.errors import BadSettings
from ortune.serving.server.listeners import (
    Access,
    Address,
    check_certificate,
    read_tokens,
    reserve_listeners,
    reserve_port,
    resolve_host,
)
from ortune.serving.server.settings import Serve

V6 = Path("/proc/net/if_inet6").is_file() and "00000000000000000000000000000001" in (
    Path("/proc/net/if_inet6").read_text()
)


def test_a_free_port_is_kept_and_shared_by_ours() -> None:
    with ExitStack() as stack:
        address = reserve_port("127.0.0.1", 0, "--http-port", stack)
        assert address.port > 0
        with address.bind_socket() as one, address.bind_socket() as two:
            one.listen()
            two.listen()
            with socket.create_connection(("127.0.0.1", address.port), 5):
                pass


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_is_taken_is_refused_also_when_it_could_be_shared(shared: bool) -> None:
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(BadSettings, match="is taken") as caught:
            reserve_port("127.0.0.1", other.getsockname()[1], "--grpc-port", ExitStack())
    assert "--grpc-port" in caught.value.fix and len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "x" * 300])
def test_a_host_that_is_not_ours(host: str) -> None:
    with pytest.raises(BadSettings, match="--host"):
        reserve_port(host, 0, "--http-port", ExitStack())


def test_a_port_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Strict)
    with pytest.raises(BadSettings, match="port 80 belongs to the system") as caught:
        reserve_port("127.0.0.1", 80, "--http-port", ExitStack())
    assert "1024" in caught.value.fix


@pytest.mark.skipif(not V6, reason="this machine has no ::1")
def test_version_6_of_the_protocol() -> None:
    with ExitStack() as stack:
        address = reserve_port("::1", 0, "--http-port", stack)
        assert str(address) == f"[::1]:{address.port}"


def test_names_and_numbers() -> None:
    assert resolve_host("localhost") in ("127.0.0.1", "::1")
    assert str(Address("127.0.0.1", 80)) == "127.0.0.1:80"


@pytest.mark.parametrize(
    ("host", "words"), [("127.0.0.3", ""), ("::1", ""), ("0.0.0.0", "may ask"), ("::", "may ask")]
)
def test_letting_others_in_is_warned_of(host: str, words: str) -> None:
    said: list[str] = []
    if ":" in host and not V6:
        pytest.skip("this machine has no ::1")
    with ExitStack() as stack:
        request = Serve("toy.onnx", host=host, http_port=0, grpc=False)
        reserve_listeners(request, said.append, stack)
    assert len(said) == bool(words) and words in "".join(said)


TOKEN = "c0ffee" * 5


def written(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def read(path: Path | None) -> tuple[Access, list[str]]:
    said: list[str] = []
    return read_tokens(path, said.append), said


@pytest.mark.parametrize("header", [None, "", "nonsense", f"Bearer {TOKEN}"])
def test_without_tokens_everybody_may_ask(header: str | None) -> None:
    found, said = read(None)
    assert found.open and found.allows(header) and not said


def test_every_token_of_the_file_is_taken_and_nothing_else(tmp_path: Path) -> None:
    other = "deadbeef-deadbeef"
    found, said = read(written(tmp_path / "tokens", f"# new\n{TOKEN}\n\n {other} \n"))
    assert not found.open and not said
    for token in (TOKEN, other):
        assert found.allows(f"Bearer {token}") and found.allows(f"bearer  {token}")
    for header in (
        None,
        "",
        "Bearer",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        "Bearer é\ud800",
    ):
        assert not found.allows(header), header


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no token"),
        ("# only\n\n", "has no token"),
        ("short\n", "line 1 is no token"),
        (f"{TOKEN}\nwith a space in it\n", "line 2 is no token"),
        (f"{TOKEN}\x00\n", "line 1 is no token"),
        (b"\xff\xfe", "no plain text"),
        ("x" * 70000, "larger than"),
    ],
)
def test_what_is_no_file_of_tokens_is_refused_and_not_told(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    with pytest.raises(BadSettings, match=words) as caught:
        read(written(tmp_path / "tokens", text))
    assert "with a space" not in str(caught.value) and "short" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="No such file"):
        read(tmp_path / "none")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o602, 1)])
def test_what_everybody_may_read_is_warned_of(tmp_path: Path, mode: int, warned: int) -> None:
    found, said = read(written(tmp_path / "tokens", TOKEN, mode))
    assert len(said) == warned and found.allows(f"Bearer {TOKEN}")
    assert TOKEN not in "".join(said)


def refusal_of(cert: Path | None, key: Path | None) -> str:
    with pytest.raises(BadSettings) as caught:
        check_certificate(cert, key, lambda text: None)
    assert len(str(caught.value).splitlines()) == 2
    return str(caught.value)


def test_a_good_one_is_taken(tmp_path: Path) -> None:
    good, said = pair(tmp_path), list[str]()
    found = check_certificate(good.certificate, str(good.key), said.append)
    assert found is not None and found.path == good.certificate and not said
    assert check_certificate(None, None, said.append) is None


def test_one_that_ends_soon_is_warned_of(tmp_path: Path) -> None:
    soon, said = pair(tmp_path, ends=3), list[str]()
    assert check_certificate(soon.certificate, soon.key, said.append)
    assert len(said) == 1 and "expires on" in said[0]


@pytest.mark.parametrize(
    ("begins", "ends", "words"), [(-9, -1, "has expired"), (2, 9, "is not valid yet")]
)
def test_one_out_of_its_time(tmp_path: Path, begins: float, ends: float, words: str) -> None:
    old = pair(tmp_path, begins=begins, ends=ends)
    assert words in refusal_of(old.certificate, old.key)


def test_one_that_is_not_for_servers(tmp_path: Path) -> None:
    client = pair(tmp_path, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    assert "refused by clients" in refusal_of(client.certificate, client.key)


def test_a_key_that_does_not_fit(tmp_path: Path) -> None:
    one, other = pair(tmp_path, "one"), pair(tmp_path, "other")
    assert "mismatch" in refusal_of(one.certificate, other.key)


def test_a_key_that_is_encrypted_asks_nobody_for_a_password(tmp_path: Path) -> None:
    hidden = pair(tmp_path, password=b"secret")
    assert "is encrypted" in refusal_of(hidden.certificate, hidden.key)


def test_half_a_pair_and_what_is_no_pem(tmp_path: Path) -> None:
    good, empty = pair(tmp_path), tmp_path / "empty.pem"
    empty.write_text("hello")
    assert "--tls-cert is given without --tls-key" in refusal_of(good.certificate, None)
    assert "--tls-key is given without --tls-cert" in refusal_of(None, good.key)
    assert "both PEM files" in refusal_of(empty, good.key)
    assert "both PEM files" in refusal_of(good.certificate, empty)
    assert "No such file" in refusal_of(tmp_path / "none.pem", good.key)
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "--tls-cert" in refusal_of(broken, good.key)
