"""Bodies: one cap before and after inflating, and no client holds the server up."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.unit.serving.server.http.asking import GATE, Client, client, request

from ortune.serving.server.http import exchange as watch

CAP = 1 << 16
X = np.arange(8, dtype=np.float32).reshape(2, 4)
URL = "/v2/models/toy/infer"


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)],
)
@pytest.mark.parametrize("binary", [False, True])
async def test_bodies_are_inflated(
    tmp_path: Path, encoding: str, pack: object, binary: bool
) -> None:
    async with client(tmp_path) as ask:
        body, headers = request({"x": X}, binary)
        packed: bytes = pack(body)  # type: ignore[operator]
        headers["Content-Encoding"] = encoding
        for sent in (packed, [packed[:5], b"", packed[5:]], [bytes([one]) for one in packed]):
            found = await ask("POST", URL, sent, headers)
            assert found.output("doubled")["data"] == (2 * X).ravel().tolist()


async def test_a_large_body_is_inflated_whole(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((8, 100_000), np.float32)
    async with client(tmp_path, GATE) as ask:
        body, headers = request({"x": x}, True, parameters={"binary_data_output": True})
        headers["Content-Encoding"] = "gzip"
        packed = gzip.compress(body, 1)
        parts = [packed[at : at + 200_000] for at in range(0, len(packed), 200_000)]
        found = await ask("POST", f"/v2/models/{GATE}/infer", parts, headers)
        assert found.status == 200, found.error
        head = int(found.headers["inference-header-content-length"])
        assert found.body[head:] == (2 * x).tobytes()


async def test_damaged_gzip_and_unknown_encodings(tmp_path: Path) -> None:
    whole = gzip.compress(b"{}", mtime=0)
    damaged = (b"", b"no gzip", whole[:-3], whole + b"more", whole * 2, whole[:-8] + bytes(8))
    async with client(tmp_path) as ask:
        for sent in damaged:
            found = await ask("POST", URL, sent, {"Content-Encoding": "gzip"})
            assert found.status == 400 and found.error
        for encoding in ("br", "zstd", "gzip, gzip", "x" * 5000):
            found = await ask("POST", URL, request({"x": X})[0], {"Content-Encoding": encoding})
            assert found.status == 415 and found.error == "Unsupported compression type"
            assert found.headers["accept-encoding"] == "gzip, deflate"
        plain = await ask("POST", URL, request({"x": X})[0], {"Content-Encoding": "identity"})
        assert plain.status == 200


async def test_too_large_in_every_way(tmp_path: Path) -> None:
    """Told, sent without being told, and inflated: 413, and the connection ends."""
    pad = b" " * CAP
    async with client(tmp_path, max_body=CAP) as ask:
        ways: list[tuple[object, dict[str, str], int | None]] = [
            (b"{", {}, CAP + 1),
            (pad + b"{}", {}, None),
            ([pad[:30_000], pad[:30_000], pad[:30_000]], {}, None),
            (gzip.compress(pad + b"{}", mtime=0), {"Content-Encoding": "gzip"}, None),
            ([gzip.compress(pad + b"{}", mtime=0)], {"Content-Encoding": "gzip"}, None),
        ]
        for body, headers, length in ways:
            found = await ask("POST", URL, body, headers, length=length)  # type: ignore[arg-type]
            assert found.status == 413
            assert found.error.startswith(f"the request is larger than {CAP} bytes")
        index = await ask("POST", "/v2/repository/index", pad + b"{}")
        assert index.status == 413
        assert (await ask("POST", URL, request({"x": X})[0])).status == 200
        exact = request({"x": X})[0].ljust(CAP)
        assert (await ask("POST", URL, exact)).status == 200
        packed = {"Content-Encoding": "gzip"}
        assert (await ask("POST", URL, gzip.compress(exact), packed)).status == 200


async def test_a_bomb_is_refused_at_its_first_bytes(tmp_path: Path) -> None:
    """A gigabyte in a megabyte: refused before more than the cap of it was made."""
    inflater = zlib.compressobj(9, wbits=31)
    head = inflater.flush(zlib.Z_FULL_FLUSH)
    block = inflater.compress(bytes(1 << 24)) + inflater.flush(zlib.Z_FULL_FLUSH)
    bomb = head + 64 * block  # each block stands alone, so that one is made for all
    assert len(bomb) < 2 << 20
    async with client(tmp_path, max_body=4 << 20) as ask:
        begin = time.perf_counter()
        found = await ask("POST", URL, [bomb], {"Content-Encoding": "gzip"})
        assert found.status == 413
        assert time.perf_counter() - begin < 2


async def test_others_have_their_turn_while_a_body_is_inflated(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(60 << 20), 1)
    async with client(tmp_path) as ask:
        slow = ask.begin("POST", URL, [packed], {"Content-Encoding": "gzip"})
        await asyncio.sleep(0)
        assert (await ask.infer("toy", {"x": X})).status == 200
        assert not slow.done()
        assert (await slow).status == 413, "more than any inputs of the model take"


async def test_not_everybodys_largest_at_once(tmp_path: Path) -> None:
    async with client(tmp_path, max_body=CAP, max_held=2 * CAP) as ask:
        parts = [bytes(CAP // 2)]
        held = [ask.begin("POST", URL, parts, hangs=True) for _ in range(4)]
        await asyncio.sleep(0.01)
        found = await ask("POST", URL, request({"x": X})[0].ljust(CAP // 2))
        assert found.status == 503 and found.error == "too many large requests at once"
        for one in held:
            one.cancel()
        await asyncio.wait(held)
        again = await ask("POST", URL, request({"x": X})[0].ljust(CAP))
        assert again.status == 200


async def test_a_body_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PERIOD_S", 0.05)
    async with client(tmp_path) as ask:
        for parts in ([b""], [b"{"], [b"{", b" ", b" "]):
            found = await ask("POST", URL, parts, hangs=True)
            assert found.status == 408
            assert found.error == "the body of the request did not come in time"
            assert found.headers["connection"] == "close"
        admin = await ask("POST", "/v2/repository/index", [b"{"], hangs=True)
        assert admin.status == 408


async def test_a_slow_body_that_goes_on_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So much in a period as the rate says is enough, and less is not."""
    monkeypatch.setattr(watch, "PERIOD_S", 0.2)
    monkeypatch.setattr(watch, "RATE", 1000)

    async def sent(ask: Client, piece: int) -> int:
        body = request({"x": X})[0].ljust(4000)
        parts = [body[at : at + piece] for at in range(0, len(body), piece)]

        async def receive() -> dict[str, object]:
            await asyncio.sleep(0.05)
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        seen: list[dict[str, int]] = []

        async def send(message: dict[str, int]) -> None:
            seen.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": URL.encode(),
            "headers": [(b"content-length", b"4000")],
        }
        await ask.app(scope, receive, send)  # type: ignore[arg-type]
        return seen[0]["status"]

    async with client(tmp_path) as ask:
        assert await sent(ask, 200) == 200
        assert await sent(ask, 20) == 408


async def test_a_client_that_goes_away_while_it_sends(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        gone = asyncio.Event()
        asked = ask.begin("POST", URL, [b"{"], hangs=True, gone=gone)
        await asyncio.sleep(0.01)
        gone.set()
        assert (await asked).status == 0
    log = ask.log.getvalue()
    assert "status=499" in log


async def test_what_is_refused_early_is_heard_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a body is read before the connection ends: else the answer would be lost."""
    monkeypatch.setattr(watch, "PERIOD_S", 0.05)
    async with client(tmp_path) as ask:
        for path, status in (("/v2/models/none/infer", 404), ("/nowhere", 404), ("/v2", 405)):
            found = await ask("POST", path, [b"a", b"b", b"c"])
            assert found.status == status and found.headers["connection"] == "close"
            found = await ask("POST", path, [b"a"], hangs=True)
            assert found.status == status
        whole = await ask("POST", "/v2/models/none/infer")
        assert "connection" not in whole.headers
