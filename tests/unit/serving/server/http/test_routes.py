"""All routes but inference: as the protocol and Triton's extensions say, for whom may ask."""

import base64
from pathlib import Path

import numpy as np
import pytest
from tests.unit.serving.server.http.asking import Client, client, request

from ortune.serving.server.http.app import App
from ortune.serving.server.listeners import Access
from ortune.serving.server.logs import Journal

X = np.ones((2, 4), np.float32)
TOKEN = "a-token-of-some-length"


async def test_health(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/toy/ready"):
            for method in ("GET", "HEAD"):
                found = await ask(method, path)
                assert (found.status, found.body) == (200, b"")
        assert (await ask("GET", "/v2/models/toy/versions/1/ready")).status == 200
        for path in ("/v2/models/none/ready", "/v2/models/toy/versions/2/ready"):
            found = await ask("GET", path)
            assert found.status == 400 and "unknown model" in found.error
        await ask.repository.drain(1)
        assert (await ask("GET", "/v2/health/ready")).status == 400
        assert (await ask("GET", "/v2/health/live")).status == 200
        refused = await ask.infer("toy", {"x": X})
        assert refused.status == 503 and refused.error == "Server not ready"


async def test_metadata_and_configuration(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        server = (await ask("GET", "/v2")).json
        assert server["name"] and server["version"] and "statistics" in server["extensions"]
        told = (await ask("GET", "/v2/models/toy")).json
        assert told == (await ask("GET", "/v2/models/toy/versions/1")).json
        assert told["versions"] == ["1"]
        assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        config = (await ask("GET", "/v2/models/toy/config")).json
        assert config["max_batch_size"] == 8 and config["input"][0]["dims"] == [4]
        assert (await ask("GET", "/v2/models/none")).status == 404
        assert (await ask("GET", "/v2/models/none/config")).status == 404


async def test_statistics_and_metrics(tmp_path: Path) -> None:
    async with client(tmp_path, "toy", "two") as ask:
        for _ in range(3):
            await ask.infer("toy", {"x": X})
        await ask.infer("toy", {"x": X[:, :3]})
        for path in ("/v2/models/toy/stats", "/v2/models/toy/versions/1/stats"):
            (told,) = (await ask("GET", path)).json["model_stats"]
            assert (told["name"], told["version"]) == ("toy", "1")
            assert told["inference_count"] == 6 and told["execution_count"] >= 3
            assert told["inference_stats"]["success"]["count"] == 3
            assert told["inference_stats"]["queue"]["count"] == 3
        every = (await ask("GET", "/v2/models/stats")).json["model_stats"]
        assert [one["name"] for one in every] == ["toy", "two"]
        assert (await ask("GET", "/v2/models/none/stats")).status == 404
        metrics = await ask("GET", "/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b'nv_inference_request_success{model="toy",version="1"} 3\n' in metrics.body


async def test_the_index(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        row = {"name": "toy", "version": "1", "state": "READY"}
        for body in (b"", b"{}", {"ready": True}, {"ready": False, "other": 1}):
            (found,) = (await ask("POST", "/v2/repository/index", body)).json
            assert found.items() >= row.items()
        for wrong in (b"[]", b"{", b"\xff", b"3"):
            assert (await ask("POST", "/v2/repository/index", wrong)).status == 400


async def test_load_and_unload_where_clients_may(tmp_path: Path) -> None:
    async with client(tmp_path, explicit=True) as ask:
        assert (await ask("POST", "/v2/repository/models/toy/unload", b"{}")).status == 200
        assert (await ask.infer("toy", {"x": X})).status in (404, 503)
        body = {"parameters": {"unload_dependents": False}}
        assert (await ask("POST", "/v2/repository/models/toy/load", body)).status == 200
        assert (await ask.infer("toy", {"x": X})).status == 200
        file = {"file:1/model.onnx": base64.b64encode(b"evil").decode()}
        for override in ({"config": "{}"}, file):
            found = await ask("POST", "/v2/repository/models/toy/load", {"parameters": override})
            assert found.status == 501 and "override" in found.error
        odd = await ask("POST", "/v2/repository/models/toy/load", {"parameters": [1]})
        assert odd.status == 400
        assert (await ask("POST", "/v2/repository/models/..%2fx/load")).status >= 400
        assert (await ask.infer("toy", {"x": X})).status == 200
    log = ask.log.getvalue()
    assert "evil" not in log and "ZXZpbA" not in log


async def test_load_and_unload_where_they_may_not(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        for action in ("load", "unload"):
            found = await ask("POST", f"/v2/repository/models/toy/{action}", b"{}")
            assert found.status == 503 and "explicit model load / unload" in found.error
        assert (await ask.infer("toy", {"x": X})).status == 200


async def test_there_is_no_shared_memory(tmp_path: Path) -> None:

    async def nothing(ask: Client, kind: str) -> None:
        base = f"/v2/{kind}sharedmemory"
        assert (await ask("GET", f"{base}/status")).json == []
        found = await ask("GET", f"{base}/region/r/status")
        assert (found.status, found.error) == (
            404,
            f"Unable to find {kind} shared memory region: 'r'",
        )
        body = {"key": "/r", "byte_size": 4}
        found = await ask("POST", f"{base}/region/r/register", body)
        assert found.status == 501
        for path in (f"{base}/unregister", f"{base}/region/r/unregister"):
            assert (await ask("POST", path)).status == 200
        assert (await ask("GET", base)).status == 404
        assert (await ask("POST", f"{base}/region/register")).status == 404

    async with client(tmp_path) as ask:
        for kind in ("system", "cuda"):
            await nothing(ask, kind)


@pytest.mark.parametrize(
    ("path", "key", "same"),
    [
        ("/v2/trace/setting", "trace_level", ["OFF"]),
        ("/v2/models/toy/trace/setting", "trace_level", ["OFF"]),
        ("/v2/logging", "log_info", True),
    ],
)
async def test_settings_are_told_and_do_not_change(
    tmp_path: Path, path: str, key: str, same: object
) -> None:
    async with client(tmp_path) as ask:
        assert (await ask("GET", path)).json[key] == same
        for body in ({}, {key: same}, {key: None}):
            assert (await ask("POST", path, body)).json[key] == same
        changed = await ask("POST", path, {key: ["TIMESTAMPS"], "log_file": "/etc/passwd"})
        assert changed.status == 501 and "ortune serve --" in changed.error
        assert (await ask("GET", "/v2/models/none/trace/setting")).status == 404


METHODS = (
    ("GET", "/v2/models/toy/infer", "POST"),
    ("HEAD", "/v2/models/toy/infer", "POST"),
    ("POST", "/v2/models/toy", "GET, HEAD"),
    ("DELETE", "/v2/models/toy", "GET, HEAD"),
    ("OPTIONS", "/v2/health/live", "GET, HEAD"),
    ("PUT", "/v2/logging", "GET, HEAD, POST"),
    ("GET", "/v2/repository/index", "POST"),
    ("POST", "/metrics", "GET, HEAD"),
)
NOWHERE = (
    *("/", "", "/v1", "/v2/", "/v2/models", "/v2/models/toy/generate", "/v2/models/toy/versions"),
    *(
        "/v2/health",
        "/v2/health/ready/",
        "/metrics/",
        "/v2/repository/models/toy/drop",
        "/%2e%2e/",
    ),
)


async def test_methods_and_that_there_is_nothing_else(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        for method, path, allowed in METHODS:
            found = await ask(method, path)
            assert (found.status, found.error) == (405, "Method Not Allowed")
            assert found.headers["allow"] == allowed
        for path in NOWHERE:
            found = await ask("GET", path)
            assert (found.status, bool(found.error)) == (404, True), path


async def test_tokens(tmp_path: Path) -> None:
    async with client(tmp_path, tokens=[TOKEN]) as ask:
        body, _ = request({"x": X})
        url = "/v2/models/toy/infer"
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            found = await ask("POST", url, body, given)
            assert found.status == 401 and found.headers["www-authenticate"] == "Bearer"
            assert "wrong" not in found.error
        for path in ("/metrics", "/v2", "/v2/models/toy/ready", "/nowhere", "/v2/health/x"):
            assert (await ask("GET", path)).status == 401
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (await ask("GET", path)).status == 200
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await ask("POST", url, body, right)).status == 200
        assert (await ask("GET", "/metrics", headers=right)).status == 200
    log = ask.log.getvalue()
    assert TOKEN not in log and "wrong" not in log and log.count("status=401") == 8


async def test_the_journal_hears_of_requests_and_refusals_alone(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        await ask("GET", "/v2/health/live")
        await ask("GET", "/metrics")
        await ask("GET", "/nowhere\x1b")
        await ask.infer("toy", {"x": X})
        await ask("GET", f"/v2/models/{'n' * 9000}")
    log = ask.log.getvalue()
    assert log.count("\n") == 3 and max(map(len, log.splitlines())) < 1500


async def test_a_bug_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, version: str = "") -> None:
        raise RuntimeError("/srv/secret/file.py: a bug")

    async with client(tmp_path) as ask:
        monkeypatch.setattr(ask.repository, "find_model", broken)
        found = await ask("GET", "/v2/models/toy")
        assert found.status == 500 and found.error and "/srv" not in found.error
    log = ask.log.getvalue()
    assert "ERROR" in log


async def test_it_is_an_application_of_http_alone(tmp_path: Path) -> None:
    async with client(tmp_path) as ask:
        app = App(ask.repository, Access(), Journal(ask.log))
        for kind in ("lifespan", "websocket"):
            with pytest.raises(NotImplementedError):
                await app({"type": kind}, None, None)  # type: ignore[arg-type]
