"""Infer requests over HTTP: what is answered is what the engine answers."""

import asyncio
import gzip
import io
import json
import re
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.unit.serving.server.http.asking import GATE, Client, client, request

from ortune.core.facts import TensorSpec
from ortune.serving.protocol.refusals import RequestRefused
from ortune.serving.server.http import exchange as watch
from ortune.serving.server.http.app import raw_request

X = np.arange(8, dtype=np.float32).reshape(2, 4)
URL = "/v2/models/toy/infer"
LENGTH = "inference-header-content-length"


async def test_json_in_json_out(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        found = await ask.infer("toy", {"x": X}, id="seven")
        assert found.status == 200 and found.headers["content-type"] == "application/json"
        assert LENGTH not in found.headers
        assert found.json["model_name"] == "toy" and found.json["model_version"] == "1"
        assert found.json["id"] == "seven"
        assert found.output("doubled") == {
            "name": "doubled",
            "datatype": "FP32",
            "shape": [2, 4],
            "data": (2 * X).ravel().tolist(),
        }
        assert found.output("summed")["data"] == X.sum(1).tolist()
        versioned = await ask("POST", "/v2/models/toy/versions/1/infer", request({"x": X})[0])
        assert versioned.json["outputs"] == found.json["outputs"]
    log = ask.log.getvalue()
    assert re.search(r"front=http model=toy/1 id=seven status=200 ms=\S+ queue_ms=\S+ rows=2", log)


async def test_binary_in_binary_out(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        found = await ask.infer("toy", {"x": X}, True, parameters={"binary_data_output": True})
        assert found.headers["content-type"] == "application/octet-stream"
        head = int(found.headers[LENGTH])
        told = json.loads(found.body[:head])["outputs"]
        assert [one["parameters"]["binary_data_size"] for one in told] == [32, 8]
        assert found.body[head:] == (2 * X).tobytes() + X.sum(1).tobytes()
        mixed = await ask.infer(
            "toy",
            {"x": X},
            outputs=[
                {"name": "summed", "parameters": {"binary_data": True}},
                {"name": "doubled", "parameters": {"classification": 1}},
            ],
        )
        head = int(mixed.headers[LENGTH])
        assert mixed.body[head:] == X.sum(1).tobytes()
        _, classes = json.loads(mixed.body[:head])["outputs"]
        assert classes["datatype"] == "BYTES" and classes["shape"] == [2, 1]


async def test_a_body_in_parts_is_read_in_place(tmp_path: Path) -> None:
    """Whatever the length of the JSON is, and wherever the parts end."""
    x = np.arange(200_000, dtype=np.float32).reshape(2, -1)
    asked = {"binary_data_output": True}
    async with client(tmp_path, GATE) as ask:
        for pad in range(9):
            body, headers = request({"x": x}, True, id="i" * pad, parameters=asked)
            parts = [body[:7], body[7 : 100_000 + pad], b"", body[100_000 + pad :]]
            found = await ask("POST", f"/v2/models/{GATE}/infer", parts, headers)
            assert found.body[int(found.headers[LENGTH]) :] == (2 * x).tobytes()
            taken = ask.session.seen[-1]
            assert taken.flags.aligned and not taken.flags.owndata


async def test_unknown_models_and_names_that_try_to_get_out(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        body = request({"x": X})[0]
        for name in ("none", "toy.onnx", "%2e%2e", "..%2ftoy", "%2Fetc%2Fpasswd", "toy%00", "%FF"):
            found = await ask("POST", f"/v2/models/{name}/infer", body)
            assert found.status == 404, name
            assert "unknown model" in found.error and str(tmp_path) not in found.error
        for path in ("/v2/models/../toy/infer", "/v2/models//infer", "//v2/models/toy/infer"):
            assert (await ask("POST", path, body)).status == 404, path
        assert (await ask("POST", "/v2/models/t%6Fy/infer", body)).status == 200
        assert (await ask("POST", "/v2/models/toy/versions/2/infer", body)).status == 404
        assert (await ask("POST", "/v2/models/toy/versions/x/infer", body)).status == 400
    log = ask.log.getvalue()
    assert "\x00" not in log


async def test_a_queue_that_is_full_and_a_time_out(tmp_path: Path) -> None:
    async with client(tmp_path, GATE) as ask:
        ask.session.go.clear()
        first = ask.begin("POST", f"/v2/models/{GATE}/infer", *request({"x": X[:1]}))
        while ask.session.seen[-1].shape != (1, 4) or not ask.session.seen[-1].any():
            await asyncio.sleep(0.001)
        late = await ask.infer(GATE, {"x": X[:1]}, parameters={"timeout": 10_000})
        assert late.status == 504 and late.error == "Request timeout expired"
        ask.session.go.set()
        assert (await first).status == 200


async def test_request_ids(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        body, _ = request({"x": X})
        found = await ask("POST", URL, body, {"X-Request-Id": "abc-1"})
        assert found.headers["x-request-id"] == "abc-1" and "id" not in found.json
        both = await ask("POST", URL, request({"x": X}, id="own")[0], {"X-Request-Id": "abc-2"})
        assert both.headers["x-request-id"] == "abc-2" and both.json["id"] == "own"
        for odd in ("a\nb", "x" * 129, "\x1b[31m", "é"):
            found = await ask("POST", URL, body, {"X-Request-Id": odd})
            assert found.status == 200 and "x-request-id" not in found.headers
    log = ask.log.getvalue()
    assert "id=abc-1 status=200" in log and "id=own status=200" in log
    assert "x" * 129 not in log and "\x1b" not in log


# --- pictures and raw tensors --------------------------------------------------------------


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, kind)
    return held.getvalue()


@pytest.mark.parametrize(("kind", "said"), [("PNG", "image/png"), ("JPEG", "Image/JPEG; q=1")])
async def test_pictures(tmp_path: Path, kind: str, said: str) -> None:
    pixels = np.full((9, 7, 3), (255, 0, 51), np.uint8)
    async with client(tmp_path, "eye", "toy") as ask:
        body = encoded(pixels, kind)
        found = await ask(
            "POST", "/v2/models/eye/infer", body, {"content-type": said, "x-request-id": "cat"}
        )
        assert found.status == 200 and found.json["id"] == "cat"
        assert np.allclose(found.output("mean")["data"], [1, 0, 0.2], atol=0.02)
        broken = await ask("POST", "/v2/models/eye/infer", body[:40], {"content-type": said})
        assert broken.status == 400 and broken.error
        other = await ask("POST", "/v2/models/eye/infer", b"GIF89a", {"content-type": said})
        assert other.status == 400
        tensors = await ask("POST", URL, body, {"content-type": said})
        assert tensors.status == 501 and "pictures" in tensors.error


async def test_a_raw_binary_request(tmp_path: Path) -> None:
    async with client(tmp_path, "toy", "two") as ask:
        found = await ask("POST", URL, X[0].tobytes(), {LENGTH: "0"})
        head = int(found.headers[LENGTH])
        assert found.body[head:] == (2 * X[0]).tobytes() + X[0].sum().tobytes()
        assert (await ask("POST", URL, X.tobytes(), {LENGTH: "0"})).status == 400
        assert (await ask("POST", URL, b"", {LENGTH: "0"})).status == 400
        two = await ask("POST", "/v2/models/two/infer", X.tobytes(), {LENGTH: "0"})
        assert two.status == 400 and "one input" in two.error


@pytest.mark.parametrize(
    ("shape", "batched", "length", "expected"),
    [
        (("N", 4), True, 16, (1, 4)),
        (("N", "T"), True, 12, (1, 3)),
        (("T", 2), False, 16, (2, 2)),
        ((2, 2), False, 16, (2, 2)),
        ((), False, 4, ()),
        (("T", 2), False, 12, None),
        (("T", 0), False, 4, None),
        (("A", "B"), False, 4, None),
        ((3,), False, 7, None),
    ],
)
def test_shapes_of_raw_requests(
    shape: tuple[int | str, ...], batched: bool, length: int, expected: tuple[int, ...] | None
) -> None:
    spec = TensorSpec("x", "float32", shape)
    if expected is None:
        with pytest.raises(RequestRefused):
            raw_request(bytes(length), [spec], batched=batched)
        return
    found = raw_request(bytes(range(length)), [spec], batched=batched)
    assert found.inputs["x"].shape == expected and found.binary
    assert found.inputs["x"].tobytes() == bytes(range(length))


def test_a_raw_text_is_one_element() -> None:
    found = raw_request(memoryview(b"word"), [TensorSpec("w", "str", ("N",))], batched=False)
    assert found.inputs["w"].tolist() == [b"word"] and found.datatypes == {"w": "BYTES"}


# Bodies: one cap before and after inflating, and no client holds the server up.


CAP = 1 << 16


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


async def test_a_request_fits_its_model(tmp_path: Path) -> None:
    """It is refused by its length alone, unless its model takes texts or what it says is given."""
    binary = {"Inference-Header-Content-Length": "80"}
    models = ("toy", "words", "eye")
    async with client(tmp_path, *models, fits_models=True) as ask:
        for headers in ({}, binary, {"Content-Encoding": "gzip"}, {"Content-Type": "image/png"}):
            found = await ask("POST", URL, b"", headers, length=60 << 20)
            assert found.status == 413 and found.error.startswith("the request is larger than")
        found = await ask(
            "POST", URL, b"", {"Inference-Header-Content-Length": "1000000"}, length=60 << 20
        )
        assert found.status == 413 and found.error.startswith("1000000 bytes of JSON are more")
        assert (await ask("POST", URL, request({"x": X})[0].ljust(100_000))).status == 413
        assert (await ask("POST", URL, request({"x": X})[0].ljust(60_000))).status == 200
        text = b" " * (2 << 20)
        assert "JSON" in (await ask("POST", "/v2/models/words/infer", text)).error
        picture = {"Content-Type": "image/png"}
        found = await ask("POST", "/v2/models/eye/infer", text, picture)
        assert "no JPEG or PNG" in found.error, "a picture of any size becomes the input"
    async with client(tmp_path) as ask:
        binary["Inference-Header-Content-Length"] = "80"
        assert (await ask("POST", URL, bytes(2 << 20), binary)).status == 400


async def test_what_asks_no_model_is_small(tmp_path: Path) -> None:
    """The loop itself parses it."""
    async with client(tmp_path) as ask:
        for path in ("/v2/repository/index", "/v2/trace/setting", "/v2/logging"):
            found = await ask("POST", path, b"[" * ((1 << 20) + 1))
            assert found.status == 413 and found.error.startswith("the request is larger")


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
    async with client(tmp_path, "toy", "words") as ask:
        words = "/v2/models/words/infer"
        slow = ask.begin("POST", words, [packed], {"Content-Encoding": "gzip"})
        await asyncio.sleep(0)
        assert (await ask.infer("toy", {"x": X})).status == 200
        assert not slow.done()
        assert (await slow).status == 400


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
