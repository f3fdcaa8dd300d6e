"""Clients that hang or flood: many connections that say half of it, and one that never reads."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import grpc

from benchmarks.serving.bodies import fuzzed
from benchmarks.serving.load import METHOD, Request

_HALVES = (
    b"",
    b"POST /v2/models/m/inf",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Le",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


@contextmanager
def hanging(http_address: str, grpc_address: str, count: int) -> Iterator[None]:
    """Keep connections open that say half a request, to both ports."""
    with ExitStack() as stack:
        for number in range(count):
            address = (http_address, grpc_address)[number % 2]
            one = stack.enter_context(closing(_connected(address)))
            with suppress(OSError):
                one.sendall(_HALVES[number // 2 % len(_HALVES)])
        yield


@contextmanager
def flooding(request: Request, address: str, clients: int) -> Iterator[None]:
    """Send requests as fast as they go and read no answer, until the block ends."""
    head = [f"POST {request.path} HTTP/1.1", "Host: x", f"Content-Length: {len(request.body)}"]
    head += [f"{k}: {v}" for k, v in request.headers.items()]
    data = "\r\n".join([*head, "", ""]).encode() + request.body
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with suppress(OSError), closing(_connected(address)) as one:
                one.settimeout(0.5)
                while not stop.is_set():
                    try:
                        one.sendall(data)
                    except TimeoutError:  # the server reads no more: it is its right
                        stop.wait(0.1)
                        break

    with _running([flood] * clients, stop):
        yield


def throw(http_address: str, grpc_address: str, count: int, seed: int) -> Counter[str]:
    """Send broken requests one after the other; return what they were answered with."""
    found: Counter[str] = Counter()
    connection = http.client.HTTPConnection(http_address, timeout=30)
    limit = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(grpc_address, options=limit) as channel:
        call = channel.unary_unary(METHOD)
        for one in fuzzed(count, seed):
            if one.protocol == "grpc":
                found[_over_grpc(call, one)] += 1
            else:
                found[_over_http(connection, one)] += 1
    connection.close()
    return found


def _over_http(connection: http.client.HTTPConnection, one: Request) -> str:
    try:
        connection.request("POST", one.path, one.body, dict(one.headers))
        response = connection.getresponse()
        response.read()
        return f"HTTP {response.status}"
    except (OSError, http.client.HTTPException):
        connection.close()
        return "HTTP, no answer"


def _over_grpc(call: Callable[..., bytes], one: Request) -> str:
    try:
        call(one.body, timeout=30)
        return "gRPC OK"
    except grpc.RpcError as error:
        return f"gRPC {error.code().name}"


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


@contextmanager
def _running(works: list[Callable[[], None]], stop: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        stop.set()
        for one in threads:
            one.join(timeout=10)
