"""All methods through the public client, on a real repository; tokens; gRPC's health check."""

import gzip
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc.aio as aio_client
from tests.unit.serving.server.grpc.scripted import (
    Models,
    Seen,
    body,
    connected,
    path,
    refusal,
    serving,
)
from tritonclient.utils import InferenceServerException

from ortune.bundle.engine.load import load_engine
from ortune.serving.protocol import messages
from ortune.serving.server.listeners import Access
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.sources import find_sources

SUM = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3] a, float[N,3] b) => (float[N,3] sum, float[N,3] product) {
  sum = Add(a, b)
  product = Mul(a, b)
}"""
TOKEN = "a-token-of-some-length"


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[aio_client.InferenceServerClient]:
    """Serve a model that adds and multiplies as `sum`; yield a client."""
    onnx.save(onnx.parser.parse_model(SUM), folder / "sum.onnx")
    repository = Repository(find_sources([folder / "sum.onnx"]), load_engine, **options)
    await repository.start()
    try:
        async with (
            serving(repository) as (_, address),
            aio_client.InferenceServerClient(address) as client,
        ):
            yield client
    finally:
        await repository.drain(5)


def rows(count: int) -> list[aio_client.InferInput]:
    made = []
    for name, value in (("a", 2), ("b", 3)):
        one = aio_client.InferInput(name, [count, 3], "FP32")
        made.append(one.set_data_from_numpy(np.full((count, 3), value, np.float32)))
    return made


async def test_every_method_of_the_service_is_there() -> None:
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        assert len(messages.list_methods()) == 20
        for name in messages.list_methods():
            try:
                await channel.unary_unary(path(name))(b"", timeout=10)
            except grpc.aio.AioRpcError as error:
                assert "Method not found" not in (error.details() or ""), name
        status, _ = await refusal(channel.unary_unary(path("ModelTrain"))(b""))
        assert status == "UNIMPLEMENTED"


async def test_a_model_is_described_asked_and_counted(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("sum") and await client.is_model_ready("sum", "1")
        assert not await client.is_model_ready("sum", "2")
        assert not await client.is_model_ready("other")
        with pytest.raises(InferenceServerException, match="integral value"):
            await client.is_model_ready("sum", "x")
        server = await client.get_server_metadata()
        assert server.name and server.version and "statistics" in server.extensions
        described = await client.get_model_metadata("sum", as_json=True)
        assert described["name"] == "sum" and described["versions"] == ["1"]
        assert described["inputs"][0] == {
            "name": "a",
            "datatype": "FP32",
            "shape": ["-1", "3"],
        }
        config = (await client.get_model_config("sum")).config
        assert config.name == "sum" and config.max_batch_size == 8
        assert [list(one.dims) for one in config.input] == [[3], [3]]
        assert [one.name for one in config.output] == ["sum", "product"]
        result = await client.infer("sum", rows(4))
        assert (result.as_numpy("sum") == 5).all()
        assert (result.as_numpy("product") == 6).all()
        for name, version in (("", ""), ("sum", ""), ("sum", "1")):
            (stats,) = (await client.get_inference_statistics(name, version)).model_stats
            assert (stats.name, stats.version) == ("sum", "1")
            assert stats.inference_count == 4 and stats.execution_count == 1
            assert stats.inference_stats.queue.count == 1
            assert stats.inference_stats.success.ns > 0
        with pytest.raises(InferenceServerException, match="unknown model: 'other'"):
            await client.get_inference_statistics("other")


async def test_models_are_listed_loaded_and_unloaded(tmp_path: Path) -> None:
    async with served(tmp_path, explicit=True) as client:
        (row,) = (await client.get_model_repository_index()).models
        assert (row.name, row.version, row.state) == ("sum", "1", "READY")
        await client.unload_model("sum")
        assert not await client.is_model_ready("sum")
        with pytest.raises(InferenceServerException):
            await client.infer("sum", rows(1))
        await client.load_model("sum")
        assert await client.is_model_ready("sum")
        for override in ({"config": "{}"}, {"config": "{}", "files": {"file:1/m.onnx": b"x"}}):
            with pytest.raises(InferenceServerException, match="override"):
                await client.load_model("sum", **override)
        with pytest.raises(InferenceServerException, match="failed to load 'other'"):
            await client.load_model("other")
    async with served(tmp_path) as client:
        for asked in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="not allowed") as caught:
                await asked("sum")
            assert caught.value.status() == "StatusCode.UNAVAILABLE"


async def test_another_repository_by_name_is_not_supported() -> None:
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
            request = messages.find_message_class(f"{name}Request")(repository_name="r")
            call = channel.unary_unary(path(name))(request.SerializeToString())
            assert await refusal(call) == (
                "UNIMPLEMENTED",
                "'repository_name' specification is not supported",
            )


async def test_shared_memory_is_empty_and_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        assert not (await client.get_system_shared_memory_status()).regions
        assert not (await client.get_cuda_shared_memory_status()).regions
        await client.unregister_system_shared_memory()
        await client.unregister_cuda_shared_memory()
        with pytest.raises(InferenceServerException, match="Unable to find system"):
            await client.get_system_shared_memory_status("r")
        with pytest.raises(InferenceServerException, match="send tensors") as caught:
            await client.register_system_shared_memory("r", "/r", 8)
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
        with pytest.raises(InferenceServerException, match="send tensors"):
            await client.register_cuda_shared_memory("r", b"", 0, 8)
        away = rows(1)
        away[0].set_shared_memory("r", 12)
        with pytest.raises(InferenceServerException, match="shared memory"):
            await client.infer("sum", away)


async def test_settings_of_traces_and_logs_are_told_and_do_not_change(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        traces = (await client.get_trace_settings("sum")).settings
        assert list(traces["trace_level"].value) == ["OFF"]
        same = await client.update_trace_settings(
            settings={"trace_level": "OFF", "trace_rate": None}
        )
        assert same.settings == traces
        with pytest.raises(InferenceServerException, match="'trace_level'"):
            await client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
        with pytest.raises(InferenceServerException, match="unknown model"):
            await client.get_trace_settings("other")
        logs = (await client.get_log_settings()).settings
        assert logs["log_info"].bool_param and logs["log_verbose_level"].uint32_param == 0
        assert (await client.update_log_settings({"log_info": True})).settings == logs
        with pytest.raises(InferenceServerException, match="'log_file'"):
            await client.update_log_settings({"log_file": "/etc/passwd"})


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong-token", f"Basic {TOKEN}"])
async def test_a_call_without_the_token_is_refused(header: str | None) -> None:
    seen, models = Seen(), Models()
    metadata = () if header is None else (("authorization", header),)
    async with connected(models, access=Access([TOKEN]), seen=seen) as (_, channel):
        for name in messages.list_methods():
            call = channel.unary_unary(path(name))(body(), metadata=metadata)
            if name in ("ServerLive", "ServerReady"):
                assert await call
                continue
            status, text = await refusal(call)
            assert status == "UNAUTHENTICATED" and "no token" in text
        assert not models.only.seen
        allowed = (("authorization", f"Bearer {TOKEN}"),)
        assert await channel.unary_unary(path("ModelInfer"))(body(), metadata=allowed)
    assert TOKEN not in str(seen.requests)
    assert {one.status for one in seen.requests} == {"UNAUTHENTICATED", "OK"}


@pytest.mark.parametrize("packed", [False, True])
async def test_what_asks_no_model_is_small(packed: bool) -> None:
    """The loop itself parses it."""
    sent = b"\x0a\x80\x80\x80\x01" + bytes(1 << 21)
    async with connected() as (_, channel):
        for method in ("LogSettings", "ModelMetadata", "RepositoryModelLoad"):
            given = gzip.compress(sent) if packed else sent
            status, text = await refusal(channel.unary_unary(path(method))(given, timeout=10))
            assert status == "RESOURCE_EXHAUSTED" and "larger than 1048576 bytes" in text


async def test_the_health_check_of_grpc_itself() -> None:
    models = Models()
    async with connected(models, access=Access([TOKEN])) as (_, channel):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        models.ready = False
        assert await check(b"") == b"\x08\x02"


async def test_what_is_no_message_is_refused_by_every_method(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as (_, address), grpc.aio.insecure_channel(address) as channel:
        for name, method in messages.list_methods().items():
            if name == "ModelStreamInfer":
                continue
            status, text = await refusal(channel.unary_unary(path(name))(b"\xff\xff"))
            assert status == "INVALID_ARGUMENT", name
            if name != "ModelInfer":
                assert text == f"the message is no {method.input_type.name}"
    assert not caplog.records


def test_the_public_client_lives_in_the_same_process() -> None:
    """Its messages are in protobuf's common pool, ours in one of their own."""
    script = "\n".join(
        [
            "import ortune.serving.server.grpc.server",
            "from ortune.serving.protocol import messages",
            "from tritonclient.grpc import service_pb2",
            "for name in messages.list_methods().values():",
            "    ours = messages.find_message_class(name.input_type.name)",
            "    theirs = getattr(service_pb2, name.input_type.name)",
            "    assert ours is not theirs",
            "    assert ours.DESCRIPTOR.full_name == theirs.DESCRIPTOR.full_name",
        ]
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
