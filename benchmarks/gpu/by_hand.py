"""What a careful person would run on a GPU without ortune: onnxruntime, torch, TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.steps import Target
from benchmarks.speed import shapes

Feed: TypeAlias = Mapping[str, NDArray[Any]]
Call: TypeAlias = Callable[[Feed], list[NDArray[Any]]]
RTX_MODULE = "onnxruntime_ep_nv_tensorrt_rtx"
_WARM_UPS = 3


def list_makers(
    name: str, folder: Path, target: Target
) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield contestants by name, each with what makes it ready."""
    model, half = folder / "model.onnx", target.work / "half.onnx"
    yield "onnxruntime fp32", partial(open_onnxruntime, model, target)
    yield "onnxruntime fp16", lambda: open_onnxruntime(write_half(model, half), target)
    if not target.dry:
        yield "onnxruntime fp16, CUDA graph", partial(open_bound, half)
        if target.rtx:
            yield "TensorRT-RTX fp16", partial(open_rtx, half)
        yield "torch float16, CUDA graph", partial(open_torch_graph, name, "float16", target)
    for precision in ("float16", "bfloat16"):
        yield f"torch.compile {precision}", partial(open_torch, name, precision, target, "default")
    if not target.dry:
        yield (
            "torch.compile float16, reduce-overhead",
            partial(open_torch, name, "float16", target, "reduce-overhead"),
        )


def write_half(model: Path, out: Path) -> Path:
    """Write a float16 file by onnxruntime's own converter, inputs and outputs in float32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), out)
    return out


def open_onnxruntime(model: Path, target: Target) -> Call:
    """Open a session with the defaults of the provider, and call it by NumPy arrays."""
    import onnxruntime as ort

    ort.preload_dlls()
    providers = ["CPUExecutionProvider" if target.dry else "CUDAExecutionProvider"]
    session = ort.InferenceSession(str(model), providers=providers)
    assert session.get_providers()[0] == providers[0]
    return lambda feed: list(session.run(None, dict(feed)))


def open_bound(model: Path) -> Call:
    """Open a session that replays a CUDA graph on buffers of the GPU."""
    import onnxruntime as ort

    ort.preload_dlls()
    options = {"enable_cuda_graph": "1", "use_tf32": "1"}
    session = ort.InferenceSession(str(model), providers=[("CUDAExecutionProvider", options)])
    binding = session.io_binding()
    buffers: dict[str, Any] = {}
    for name in (value.name for value in session.get_outputs()):
        binding.bind_output(name, "cuda", 0)

    def call(feed: Feed) -> list[NDArray[Any]]:
        for name, array in feed.items():
            if name in buffers:
                buffers[name].update_inplace(array)
            else:
                buffers[name] = ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
                binding.bind_ortvalue_input(name, buffers[name])
        session.run_with_iobinding(binding)
        return list(binding.copy_outputs_to_cpu())

    return call


def open_rtx(model: Path) -> Call:
    """Open a session on the plug-in provider of TensorRT-RTX."""
    import onnxruntime as ort

    ort.preload_dlls(cudnn=False)
    module = import_module(RTX_MODULE)
    provider = module.get_ep_name()
    if not any(device.ep_name == provider for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(provider, module.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices[:1], {})
    session = ort.InferenceSession(str(model), options)
    return lambda feed: list(session.run(None, dict(feed)))


def open_torch(name: str, precision: str, target: Target, mode: str) -> Call:
    """Compile a shape's module by torch.compile in one mode."""
    import torch

    module = _load_module(name, precision, target)
    compiled = torch.compile(module, mode=mode)
    call = partial(_call_torch, compiled, precision, target)
    for _ in range(_WARM_UPS):
        call(_make_feed(name))
    return call


def open_torch_graph(name: str, precision: str, target: Target) -> Call:
    """Record a shape's module as a CUDA graph by torch, without a compiler."""
    import torch

    module = _load_module(name, precision, target)
    inputs = _put_inputs(_make_feed(name), precision, target)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            module(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        outputs = module(*inputs)

    def call(feed: Feed) -> list[NDArray[Any]]:
        with torch.inference_mode():
            for buffer, array in zip(inputs, feed.values(), strict=True):
                buffer.copy_(torch.from_numpy(array))
            graph.replay()
            return _take_outputs(outputs)

    return call


def _load_module(name: str, precision: str, target: Target) -> Any:
    import torch

    module = shapes.network(name).to(target.device, getattr(torch, precision))
    if name in ("resnet50", "unet", "dunet"):  # the layout that PyTorch advises for convolutions
        module = module.to(memory_format=torch.channels_last)
    return module


def _make_feed(name: str) -> Feed:
    with np.load(next(iter(sorted((shapes.write(name) / "data").glob("*.npz"))))) as arrays:
        return dict(arrays)


def _put_inputs(feed: Feed, precision: str, target: Target) -> list[Any]:
    import torch

    tensors = [torch.from_numpy(array).to(target.device) for array in feed.values()]
    dtype = getattr(torch, precision)
    return [one.to(dtype) if one.is_floating_point() else one for one in tensors]


def _call_torch(module: Any, precision: str, target: Target, feed: Feed) -> list[NDArray[Any]]:
    import torch

    with torch.inference_mode():
        return _take_outputs(module(*_put_inputs(feed, precision, target)))


def _take_outputs(outputs: Any) -> list[NDArray[Any]]:
    """Return outputs as float32 arrays of the CPU: narrow ones are widened on the device."""
    tensors: Sequence[Any] = outputs if isinstance(outputs, tuple) else [outputs]
    return [one.float().cpu().numpy() for one in tensors]
