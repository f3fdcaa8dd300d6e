"""HTTP/2 as bytes, for clients that keep none of its rules."""

from __future__ import annotations

import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0))
"""The preface, and settings that change nothing."""


def frame(kind: int, stream: int, content: bytes = b"", flags: int = 0) -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def field(name: bytes, value: bytes) -> bytes:
    """Return a header that is neither indexed nor compressed, of less than 127 bytes each."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


def call(stream: int, path: str, flags: int = END_HEADERS) -> bytes:
    """Return the frame that begins a call of gRPC."""
    said = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    said |= {"content-type": "application/grpc", "te": "trailers"}
    block = b"".join(field(name.encode(), value.encode()) for name, value in said.items())
    return frame(HEADERS, stream, block, flags)


def message(stream: int, body: bytes) -> bytes:
    """Return the frames of a call's only message, of at most 16 kB."""
    return frame(DATA, stream, b"\0" + struct.pack(">I", len(body)) + body, END_STREAM)


def connect(address: str, source: str = "") -> socket.socket:
    """Open a connection, from an address of this machine that may be another than usual."""
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), 10, (source, 0) if source else None)
    made.sendall(OPENING)
    return made
