"""Ports: what is in the way is said in two lines; several sockets of ours share one."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from ortune.core.errors import BadSettings
from ortune.server.addresses import Address, is_loopback, listener, reserve, resolve

V6 = Path("/proc/net/if_inet6").is_file() and "00000000000000000000000000000001" in (
    Path("/proc/net/if_inet6").read_text()
)


def test_a_free_port_is_kept_and_shared_by_ours() -> None:
    held = reserve("127.0.0.1", 0, "--http-port")
    assert held.address.port > 0
    with listener(held.address) as one, listener(held.address) as two:
        one.listen()
        two.listen()
        with socket.create_connection(("127.0.0.1", held.address.port), 5):
            pass
    held.close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_is_taken_is_refused_also_when_it_could_be_shared(shared: bool) -> None:
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(BadSettings, match="is taken") as caught:
            reserve("127.0.0.1", other.getsockname()[1], "--grpc-port")
    assert "--grpc-port" in caught.value.fix and len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "x" * 300])
def test_a_host_that_is_not_ours(host: str) -> None:
    with pytest.raises(BadSettings, match="--host"):
        reserve(host, 0, "--http-port")


def test_a_port_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Strict)
    with pytest.raises(BadSettings, match="port 80 belongs to the system") as caught:
        reserve("127.0.0.1", 80, "--http-port")
    assert "1024" in caught.value.fix


@pytest.mark.skipif(not V6, reason="this machine has no ::1")
def test_version_6_of_the_protocol() -> None:
    held = reserve("::1", 0, "--http-port")
    assert str(held.address) == f"[::1]:{held.address.port}"
    held.close()


def test_names_and_numbers() -> None:
    assert resolve("localhost") in ("127.0.0.1", "::1")
    assert is_loopback("127.0.0.3") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("192.0.2.1")
    assert str(Address("127.0.0.1", 80)) == "127.0.0.1:80"
