"""What the public clients see: their own methods, and every datatype."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.packages.conformance.asking import Addresses, Answer, Case
from tests.packages.conformance.models import ECHOES
from tests.tensors import values

_KINDS: dict[str, ModuleType] = {"http": tritonclient.http, "grpc": tritonclient.grpc}
_METHODS: dict[str, tuple[Any, ...]] = {
    "is_server_live": (),
    "is_server_ready": (),
    "is_model_ready": ("sum",),
    "is_model_ready of none": ("none",),
    "get_server_metadata": (),
    "get_model_metadata": ("sum",),
    "get_model_config": ("sum",),
    "get_model_repository_index": (),
    "load_model": ("sum",),
    "unload_model": ("sum",),
    "get_inference_statistics of none": ("none",),
    "get_system_shared_memory_status": (),
    "get_cuda_shared_memory_status": (),
    "get_trace_settings": (),
    "get_log_settings": (),
}


def _client_case(name: str, ask: Callable[[Any, ModuleType], Any]) -> Case:
    """Return a case that asks through a client of a protocol."""
    kind = _KINDS[name]

    def asked(where: Addresses) -> Answer:
        with kind.InferenceServerClient(getattr(where, name)) as client:
            try:
                return {"answer": ask(client, kind)}
            except InferenceServerException as error:
                return {"status": error.status(), "error": error.message()}

    return asked


def _method(name: str, method: str, words: tuple[Any, ...]) -> Case:
    more = {"as_json": True} if name == "grpc" and method.startswith("get") else {}
    plain = method.partition(" ")[0]
    return _client_case(name, lambda client, _: getattr(client, plain)(*words, **more))


def _echo(name: str, datatype: str) -> Case:
    def ask(client: Any, kind: ModuleType) -> Any:
        array = values(datatype, 5)
        one = kind.InferInput("x", array.shape, datatype)
        one.set_data_from_numpy(array)
        found = client.infer(f"echo-{datatype}", [one], request_id="7").as_numpy("y")
        return {"dtype": str(found.dtype), "shape": list(found.shape), "values": found.tolist()}

    return _client_case(name, ask)


def _classes(name: str) -> Case:
    def ask(client: Any, kind: ModuleType) -> Any:
        inputs = [kind.InferInput(one, (2, 4), "FP32") for one in ("a", "b")]
        for place, one in enumerate(inputs):
            one.set_data_from_numpy(np.arange(8, dtype=np.float32).reshape(2, 4) * (1 - 3 * place))
        found = client.infer(
            "sum", inputs, outputs=[kind.InferRequestedOutput("sum", class_count=3)]
        )
        return [list(map(bytes.decode, row)) for row in found.as_numpy("sum")]

    return _client_case(name, ask)


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    found: dict[str, Case] = {}
    for name in _KINDS:
        for method, words in _METHODS.items():
            found[f"{name} client: {method}"] = _method(name, method, words)
        for datatype in ECHOES:
            found[f"{name} client: {datatype}"] = _echo(name, datatype)
        found[f"{name} client: classes"] = _classes(name)
    return found
