"""Serving on Ray, as far as it needs none: what is refused, what travels, how CPUs are divided."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import onnx
import pytest
from onnx import numpy_helper
from tests.unit import studies

import ortune as ot
from ortune.core.errors import BadSettings, OrtuneError
from ortune.serving.protocol import messages
from ortune.serving.protocol.refusals import RequestRefused
from ortune.serving.server import deployment, replica
from ortune.serving.server.repository.sources import find_sources
from ortune.serving.server.settings import Serve


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "--host 127.0.0.1"),
        ({"host": "::1"}, "--host ::1"),
        ({"http": False}, "--no-http"),
        ({"grpc": False, "watch": True}, "--watch"),
        ({"grpc": False, "explicit": True}, "--explicit"),
        ({"grpc": False, "tls_key": "key.pem"}, "--tls-cert"),
    ],
)
def test_what_proxies_cannot_hold_is_refused_by_its_name(
    options: dict[str, Any], option: str
) -> None:
    with pytest.raises(BadSettings) as caught:
        deployment.refuse_unproxied_options(Serve("a.onnx", executor="ray", **options))
    assert caught.value.what.startswith(f"{option} with --executor ray: ")
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("options", [{"grpc": False}, {"host": "0.0.0.0"}, {"host": "::"}])
def test_what_they_can_hold_is_not(options: dict[str, Any]) -> None:
    deployment.refuse_unproxied_options(Serve("a.onnx", executor="ray://head:10001", **options))


def test_an_executor_is_local_or_a_cluster() -> None:
    with pytest.raises(BadSettings, match=r"no executor 'ssh:a\.toml'"):
        ot.serve("a.onnx", executor="ssh:a.toml")
    with pytest.raises(BadSettings, match="--processes: 1000 is too large: this process"):
        ot.serve("a.onnx", processes=1000)


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    with pytest.raises(OrtuneError, match="--executor ray needs the package ray") as caught:
        ot.serve(model, executor="ray", grpc=False)
    assert caught.value.fix == "pip install 'ray[data,default,serve]'"


@pytest.mark.parametrize(
    ("nodes", "wanted", "replicas", "divided"),
    [
        ([4, 4], 2, None, (2, 4)),
        ([4, 4], 2, 3, (2, 3)),
        ([4, 2, 0], 0, None, (2, 3)),
        ([8, 8], 0, None, (8, 2)),
        ([8, 8], 0, 1, (8, 1)),
        ([8, 8], 0, 4, (4, 4)),
        ([8], 0, 3, (2, 3)),
        ([8, 3], 4, None, (4, 2)),
    ],
)
def test_replicas_have_the_cpus_of_their_plan_or_those_of_a_node(
    nodes: list[int], wanted: int, replicas: int | None, divided: tuple[int, int]
) -> None:
    cpus, count = deployment.divide_cluster(nodes, wanted, replicas)
    fitting = sum(node // cpus for node in nodes)
    assert (cpus, count) == (divided[0], fitting if replicas is None else divided[1])
    assert fitting >= count


@pytest.mark.parametrize(
    ("nodes", "wanted", "replicas"), [([2], 4, None), ([2, 2], 1, 5), ([], 0, 1)]
)
def test_replicas_that_do_not_fit_are_refused(
    nodes: list[int], wanted: int, replicas: int | None
) -> None:
    with pytest.raises(BadSettings, match="not fit: the nodes have"):
        deployment.divide_cluster(nodes, wanted, replicas)


def test_a_replica_needs_the_threads_of_the_plan_times_its_instances(tmp_path: Path) -> None:
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    bundle = ot.pack(studies.study(tmp_path / "study"), tmp_path / "packed.ortune")
    for path, options, needs in (
        (model, {}, (0, 0)),
        (model, {"on": "cpu(threads=2)"}, (2, 0)),
        (model, {"on": "cuda(threads=1)"}, (1, 1)),
        (bundle, {"on": "cpu(threads=3)"}, (3, 0)),
    ):
        request = Serve(path, **options)  # type: ignore[arg-type]
        assert deployment.find_needs(request, find_sources(request.names)) == needs


def test_all_files_of_a_model_travel_and_have_their_places(tmp_path: Path) -> None:
    model = onnx.load(studies.write_model(tmp_path / "small.onnx", studies.MODEL))
    for tensor in model.graph.initializer:  # raw: only such is written beside a model
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save_model(
        model,
        tmp_path / "big.onnx",
        save_as_external_data=True,
        location="big.data",
        size_threshold=0,
    )
    versions = tmp_path / "net" / "3"
    versions.mkdir(parents=True)
    (tmp_path / "small.onnx").rename(versions / "any.onnx")
    key = tmp_path / "key.pem"
    request = Serve([f"large={tmp_path / 'big.onnx'}", tmp_path / "net"], require_signature=key)
    sources = find_sources(request.names)
    assert dict(deployment.list_travelling_files(request, sources)) == {
        "large/1/big.onnx": tmp_path / "big.onnx",
        "large/1/big.data": tmp_path / "big.data",
        "net/3/any.onnx": versions / "any.onnx",
        "-/signer.pem": key,
    }
    there = deployment.relocate_models(request, sources)
    assert there.names == ("large=large", "net=net")
    assert there.require_signature == "-/signer.pem"


def test_proxies_learn_every_method_and_replicas_have_it() -> None:
    handlers = dict[str, Any]()

    def add(generic: Any) -> None:
        handlers.update(generic[0]._method_handlers)

    messages.add_services(None, SimpleNamespace(add_generic_rpc_handlers=add))
    assert "/grpc.health.v1.Health/Check" in handlers
    streams = {path for path, handler in handlers.items() if handler.response_streaming}
    assert streams == {f"/{messages.SERVICE}/ModelStreamInfer"}
    for path, handler in handlers.items():
        assert handler.request_deserializer is None, "bytes stay bytes"
        assert callable(getattr(replica.Replica, path.rpartition("/")[2]))


def test_a_message_larger_than_the_limit_is_refused() -> None:
    async def two() -> AsyncIterator[bytes]:
        yield b"12345678"
        yield b"123456789"

    async def read() -> None:
        context = SimpleNamespace(peer=None, invocation_metadata=None)
        call = replica.ProxiedCall(context, two(), 8)
        assert await call.read() == b"12345678"
        with pytest.raises(RequestRefused, match="larger than 8 bytes"):
            await call.read()
        assert await call.read() is grpc.aio.EOF

    asyncio.run(read())
