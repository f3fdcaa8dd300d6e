"""A run that nobody waits for any more is told to end, and the session computes for others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.endless import FOR_EVER, write_loop

from ortune.backends.runtimes.openvino.native import open_native_session
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.core.termination import RunTerminated, Termination

X = np.ones(4, np.float32)
ENDLESS, ONCE = np.array(FOR_EVER), np.array(1)
SOON_S = 20.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    loaded = load_engine(write_loop(tmp_path / "loop.onnx"), on="cpu(threads=1)")
    yield loaded
    loaded.terminate()
    loaded.close()


def test_a_deadline_ends_the_run_and_the_next_request_is_answered(engine: Engine) -> None:
    async def ask() -> np.ndarray:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.submit(x=X, n=ENDLESS), 0.3)
        return (await asyncio.wait_for(engine.submit(x=X, n=ONCE), SOON_S))["y"]

    np.testing.assert_allclose(asyncio.run(ask()), np.sin(X), rtol=1e-6)
    assert (engine.statistics.cancelled, engine.statistics.failed) == (1, 0)


def test_what_goes_on_when_an_engine_ends_is_told_to_end_too(engine: Engine) -> None:
    async def ask() -> None:
        asking = asyncio.ensure_future(engine.submit(x=X, n=ENDLESS))
        behind = asyncio.ensure_future(engine.submit(x=X, n=ENDLESS))
        await asyncio.sleep(0.3)
        engine.terminate()
        for request in (asking, behind):
            with pytest.raises(RunTerminated):
                await asyncio.wait_for(request, SOON_S)

    asyncio.run(ask())
    engine.close()  # joins the thread that computed


def test_a_scope_ends_the_run_of_its_own_thread(engine: Engine) -> None:
    termination = Termination()
    threading.Timer(0.3, termination.request).start()
    began = time.monotonic()
    with termination.scope(), pytest.raises(RunTerminated):
        engine(x=X, n=ENDLESS)
    with termination.scope(), pytest.raises(RunTerminated):
        engine(x=X, n=ENDLESS)  # it begins after the end was asked for
    assert time.monotonic() - began < SOON_S
    np.testing.assert_allclose(engine(x=X, n=ONCE)["y"], np.sin(X), rtol=1e-6)


def test_openvino_ends_between_two_layers(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    layers = 400
    lines = [f"v{place + 1} = MatMul(v{place}, w)" for place in range(layers)]
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[512,512] v0, float[512,512] w) '
        f"=> (float[512,512] v{layers}) {{ " + "\n".join(lines) + "}"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "long.onnx")
    feeds = {name: np.zeros((512, 512), np.float32) for name in ("v0", "w")}
    options = {"INFERENCE_NUM_THREADS": "1"}
    with open_native_session(tmp_path / "long.onnx", options) as session:
        session.run(feeds)
        began = time.monotonic()
        with Termination().scope():
            whole = session.run(feeds)
        took = time.monotonic() - began
        termination = Termination()
        threading.Timer(took / 10, termination.request).start()
        began = time.monotonic()
        with termination.scope(), pytest.raises(RunTerminated):
            session.run(feeds)
        assert time.monotonic() - began < took * 0.8
        with termination.scope(), pytest.raises(RunTerminated):
            session.run(feeds)  # the end was asked for before
        np.testing.assert_array_equal(session.run(feeds)[f"v{layers}"], whole[f"v{layers}"])
