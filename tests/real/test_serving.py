"""Real models behind a real server: what clients get is what the engine answers."""

from __future__ import annotations

import numpy as np
import pytest

import ortune as ot
from tests.real import engines
from tests.serving import serving

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")
DATATYPES = {"float32": "FP32", "int64": "INT64"}


@pytest.mark.parametrize("name", ["digit-cnn", "minilm", "silero"])
def test_clients_get_what_the_engine_answers(name: str) -> None:
    if lacking := engines.absent(name):
        pytest.skip(lacking)
    path, samples = engines.model(name)
    with serving(path, options=["--on", "cpu(threads=1)"]) as server:
        with ot.load(path, on="cpu(threads=1)") as engine:
            expected = [engine(**one) for one in samples]
        for kind, address in ((httpclient, server.http), (grpcclient, server.grpc)):
            with kind.InferenceServerClient(address) as client:
                for feeds, right in zip(samples, expected, strict=True):
                    inputs = []
                    for key, array in feeds.items():
                        one = kind.InferInput(key, array.shape, DATATYPES[array.dtype.name])
                        one.set_data_from_numpy(array)
                        inputs.append(one)
                    found = client.infer(path.stem, inputs)
                    for key, array in right.items():
                        assert np.array_equal(found.as_numpy(key), array), key
