"""The public clients, unmodified: every dtype, every way to ask, batches of 1 to 32."""

from __future__ import annotations

import asyncio
import queue
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from tests.serving import Serving, serving
from tests.tensors import TYPES, values
from tests.unit import studies, texts

import ortune as ot

httpclient = pytest.importorskip("tritonclient.http")
grpcclient = pytest.importorskip("tritonclient.grpc")
http_aio = pytest.importorskip("tritonclient.http.aio")
grpc_aio = pytest.importorskip("tritonclient.grpc.aio")

Arrays = Mapping[str, NDArray[Any]]
BATCHES = range(1, 33)
ONLY_RAW = ("FP16", "BF16")
"""JSON has no form for them."""
OUTPUTS = ("same", "twice")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model a datatype with two outputs: the input, and it beside itself."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: studies.write_model(
            folder / f"{name}.onnx",
            f"""<ir_version: 8, opset_import: ["": 17]>
            g ({kind}[N,3] x) => ({kind}[N,3] same, {kind}[N,6] twice) {{
                same = Identity(x)
                twice = Concat<axis: int = 1>(x, x)
            }}""",
        )
        for name, kind in TYPES.items()
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Serving]:
    with serving(*models.values(), options=["--max-batch", "32"]) as running:
        yield running


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> dict[str, list[Arrays]]:
    """What the engine itself answers, a batch after the other."""
    found = {}
    for name, path in models.items():
        with ot.load(path, max_batch=32) as engine:
            found[name] = [engine(x=given(name, rows)) for rows in BATCHES]
    return found


def given(datatype: str, rows: int) -> NDArray[Any]:
    """Return the input as the engine takes it: text in the place of bytes."""
    array = values(datatype, rows)
    return np.frompyfunc(bytes.decode, 1, 1)(array) if datatype == "BYTES" else array


def raw(found: NDArray[Any]) -> NDArray[Any]:
    """Return an output with bytes in the place of text: JSON and the engine give text."""
    return np.frompyfunc(_encoded, 1, 1)(found) if found.dtype == object else found


def _encoded(one: str | bytes) -> bytes:
    return one if isinstance(one, bytes) else one.encode()


def same(found: Any, expected: Arrays, names: tuple[str, ...] = OUTPUTS) -> None:
    for name in names:
        array = found.as_numpy(name)
        assert array is not None, f"no output '{name}'"
        array, right = raw(array), raw(expected[name])
        assert array.dtype == right.dtype and array.shape == right.shape
        assert np.array_equal(array, right)


def asked(client: Any, datatype: str, rows: int, binary: bool | None) -> list[Any]:
    """Return the input as a client wants it; `binary` is said where the protocol has both."""
    array = values(datatype, rows)
    one = client.InferInput("x", array.shape, datatype)
    one.set_data_from_numpy(array, **({} if binary is None else {"binary_data": binary}))
    return [one]


def outputs(client: Any, binary: bool | None) -> list[Any]:
    more = {} if binary is None else {"binary_data": binary}
    return [client.InferRequestedOutput(name, **more) for name in OUTPUTS]


def ways(datatype: str) -> tuple[bool, ...]:
    return (True,) if datatype in ONLY_RAW else (True, False)


@pytest.mark.parametrize("datatype", TYPES)
def test_http(server: Serving, expected: dict[str, list[Arrays]], datatype: str) -> None:
    with httpclient.InferenceServerClient(server.http) as client:
        for binary in ways(datatype):
            for rows in BATCHES:
                found = client.infer(
                    datatype,
                    asked(httpclient, datatype, rows, binary),
                    outputs=outputs(httpclient, binary),
                )
                same(found, expected[datatype][rows - 1])


@pytest.mark.parametrize("datatype", TYPES)
def test_grpc(server: Serving, expected: dict[str, list[Arrays]], datatype: str) -> None:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for rows in BATCHES:
            found = client.infer(datatype, asked(grpcclient, datatype, rows, None))
            same(found, expected[datatype][rows - 1])


def test_both_async_clients_all_at_once(
    server: Serving, expected: dict[str, list[Arrays]]
) -> None:
    """Requests of every kind in flight together: each gets its own answer."""

    async def every() -> None:
        async with (
            http_aio.InferenceServerClient(server.http) as over_http,
            grpc_aio.InferenceServerClient(server.grpc) as over_grpc,
        ):
            await asyncio.gather(
                *(
                    one(over_http, httpclient, datatype, rows, binary)
                    for datatype in TYPES
                    for binary in ways(datatype)
                    for rows in BATCHES
                ),
                *(
                    one(over_grpc, grpcclient, datatype, rows, None)
                    for datatype in TYPES
                    for rows in BATCHES
                ),
            )

    async def one(client: Any, kind: Any, datatype: str, rows: int, binary: bool | None) -> None:
        found = await client.infer(
            datatype, asked(kind, datatype, rows, binary), outputs=outputs(kind, binary)
        )
        same(found, expected[datatype][rows - 1])

    asyncio.run(every())


def test_a_stream_answers_each_request_by_its_id(
    server: Serving, expected: dict[str, list[Arrays]]
) -> None:
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        for rows in BATCHES:
            client.async_stream_infer(
                "FP32", asked(grpcclient, "FP32", rows, None), request_id=str(rows)
            )
        for _ in BATCHES:
            found, error = arrived.get(timeout=20)
            assert error is None
            same(found, expected["FP32"][int(found.get_response().id) - 1])
        client.stop_stream()


def test_a_client_that_sends_without_end_is_read_as_it_is_answered(
    server: Serving, expected: dict[str, list[Arrays]]
) -> None:
    body = b'{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}'
    head = b"POST /v2/models/FP32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    data = 100 * (head % len(body) + body)
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port))) as flood:
        flood.settimeout(0.5)
        with suppress(TimeoutError):
            for _ in range(5000):  # 80 MB, of which no answer is read
                flood.sendall(data)
        assert process.memory_info().rss - before < 50e6
        with httpclient.InferenceServerClient(server.http) as client:
            found = client.infer("FP32", asked(httpclient, "FP32", 1, True))
            same(found, expected["FP32"][0])
    assert "ERROR" not in server.said


def test_texts_are_tokenized_in_the_server(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    texts.write_reader(tmp_path / "f", "BertModel", similarity=True)
    sentences = np.array([b"cat here here", b"cat"], object)
    with serving(f"reader={tmp_path / 'f/onnx/model.onnx'}") as running:
        assert running.told["models"] == ["reader", "reader.text"]
        over_http = httpclient.InferenceServerClient(running.http)
        over_grpc = grpcclient.InferenceServerClient(running.grpc)
        for kind, client, binary in (
            (httpclient, over_http, True),
            (httpclient, over_http, False),
            (grpcclient, over_grpc, None),
        ):
            for data, right in ((sentences, [[0.6, 0.8], [1, 0]]), (sentences[1:], [[1, 0]])):
                said = {} if binary is None else {"binary_data": binary}
                given = kind.InferInput("text", data.shape, "BYTES")
                given.set_data_from_numpy(data, **said)
                wanted = [kind.InferRequestedOutput("vector", **said)]
                found = client.infer("reader.text", [given], outputs=wanted).as_numpy("vector")
                np.testing.assert_allclose(found, right, atol=1e-6)
            for wrong, why in (
                (np.array([b"\xff\xfe"], object), "no UTF-8"),
                (np.array([b"a"] * 65, object), "send 1 to 64"),
            ):
                given = kind.InferInput("text", wrong.shape, "BYTES")
                if binary is False and why == "no UTF-8":
                    continue  # the client itself refuses
                given.set_data_from_numpy(wrong, **said)
                with pytest.raises(Exception, match=why):
                    client.infer("reader.text", [given])
        metadata = over_http.get_model_metadata("reader.text")
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        assert metadata["outputs"] == [{"name": "vector", "datatype": "FP32", "shape": [-1, 2]}]
        assert over_http.get_inference_statistics("reader.text")["model_stats"][0][
            "inference_stats"
        ]
        over_grpc.close()


def test_pairs_of_texts_and_words(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    classes = {"0": "animal", "1": "place"}
    for name, kind in (("pairs", "Sequence"), ("words", "Token")):
        architecture = f"BertFor{kind}Classification"
        texts.write_reader(tmp_path / name, architecture, id2label=classes)
    given = [f"{name}={tmp_path / name}/onnx/model.onnx" for name in ("pairs", "words")]
    with serving(*given) as running:
        over_http = httpclient.InferenceServerClient(running.http)
        over_grpc = grpcclient.InferenceServerClient(running.grpc)
        for kind, client in ((httpclient, over_http), (grpcclient, over_grpc)):

            def ask(model: str, kind: Any = kind, client: Any = client, **columns: str) -> Any:
                inputs = [kind.InferInput(name, [1], "BYTES") for name in columns]
                for tensor, text in zip(inputs, columns.values(), strict=True):
                    tensor.set_data_from_numpy(np.array([text], object))
                return client.infer(f"{model}.text", inputs)

            assert ask("pairs", text="a cat").as_numpy("label").tolist() == [b"animal"]
            pair = ask("pairs", text="a cat", text_pair="here here here")
            assert pair.as_numpy("label").tolist() == [b"place"]
            with pytest.raises(Exception, match="missing required input"):
                ask("pairs", text_pair="here")
            words = ask("words", text="cat  here")
            assert words.as_numpy("word").tolist() == [b"cat", b"here"]
            assert words.as_numpy("label").tolist() == [b"animal", b"place"]
            assert words.as_numpy("start").tolist() == [0, 5]
            with pytest.raises(Exception, match="got 2 inputs"):
                ask("words", text="cat", text_pair="here")
        config = over_http.get_model_config("pairs.text")
        assert [one["optional"] for one in config["input"]] == [False, True]
        over_grpc.close()
