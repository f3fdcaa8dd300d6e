"""Requests that were damaged at random: each gets its refusal, and nothing is left of them."""

import gzip
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.fuzz import mutate
from tests.unit.serving.server.http.asking import client, request

X = np.arange(8, dtype=np.float32).reshape(2, 4)
CAP = 1 << 16
TOLD = {200, 400, 404, 405, 413, 415, 501, 503}
"""What a client may get for its own fault; 500 is none of these."""
PATHS = (
    "/v2/models/toy/infer",
    "/v2/models/words/infer",
    "/v2/models/toy/versions/1/infer",
    "/v2/repository/index",
    "/v2/repository/models/toy/load",
    "/v2/logging",
)
KINDS = ("application/json", "application/octet-stream", "image/png", "image/jpeg", "\x7f")


def drawn(rng: Random) -> tuple[str, str, bytes | list[bytes], dict[str, str]]:
    """Return a request: a good one in which something is wrong, as a rule."""
    words = np.array(["a", "ü"], object)
    body, headers = rng.choice(
        (request({"x": X}), request({"x": X}, True), request({"word": words}))
    )
    for _ in range(rng.choice((0, 1, 1, 2))):
        body = mutate.raw(rng, body)
    if not rng.randrange(4):
        headers["Inference-Header-Content-Length"] = str(rng.choice((0, 1, len(body), "x", 1e9)))
    if not rng.randrange(3):
        pack = rng.choice((gzip.compress, zlib.compress))
        body = mutate.raw(rng, pack(body)) if rng.randrange(2) else pack(body)
        headers["Content-Encoding"] = rng.choice(("gzip", "deflate", "br"))
    if not rng.randrange(3):
        headers["Content-Type"] = rng.choice(KINDS)
    if not rng.randrange(4):
        headers["x-request-id"] = mutate.raw(rng, b"some id").decode("latin-1")
    path = rng.choice(PATHS)
    if not rng.randrange(8):
        path = mutate.raw(rng, path.encode()).decode("ascii", "ignore")
    parts: bytes | list[bytes] = body
    if rng.randrange(2):
        cut = rng.randrange(len(body) + 1)
        parts = [body[:cut], body[cut:]]
    return rng.choice(("POST", "POST", "POST", "GET", "BREW")), path, parts, headers


@pytest.mark.parametrize("seed", range(2))
async def test_damaged_requests(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    async with client(tmp_path, "toy", "words", max_body=CAP, max_held=CAP) as ask:
        seen = set()
        for _ in range(150):
            method, path, body, headers = drawn(rng)
            found = await ask(method, path, body, headers)
            assert found.status in TOLD, (path, body, headers, found.body)
            assert found.status == 200 or found.error
            seen.add(found.status)
        assert {200, 400} <= seen
        exact = request({"x": X})[0].ljust(CAP)
        assert (await ask("POST", PATHS[0], exact)).status == 200
    log = ask.log.getvalue()
    assert "\x1b" not in log and "\x00" not in log
    assert "status=500" not in log
