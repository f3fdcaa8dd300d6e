"""Packages for TensorRT: what is written without a GPU, and an engine of the recorded API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.recorded import recordings
from tests.unit import packaged

from ortune.backends.runtimes.tensorrt import library
from ortune.backends.tensorrt_engine import TensorrtEngine
from ortune.backends.torch import Torch
from ortune.bundle.pack import package
from ortune.bundle.target import unpack_temporarily
from ortune.core.errors import BackendMissing, BadModel, BadSettings
from ortune.targets.tensorrt_engine import TensorrtPackage

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "mine": 1]>\n'

EXAMPLE = Path(__file__).parents[3] / "examples" / "tensorrt_plugin"
RANGE, PLAIN = "x:1x4..8x4..4x4", "timing_cache=false"
AFTER = (
    "network.num_inputs -> 1",
    "network.get_input(0) -> tensor",
    "tensor.name -> 'x'",
    "tensor.is_shape_tensor -> False",
    "tensor.shape -> (-1, 4)",
    "builder.create_optimization_profile() -> profile",
    "profile.set_shape('x', (1, 4), (4, 4), (8, 4))",
    "config.add_optimization_profile(profile) -> 0",
    "builder.build_serialized_network(network, config) -> plan",
    "bytes(plan) -> b'engine'",
)
INSPECTED = (
    "engine.create_engine_inspector() -> inspector",
    'inspector.get_engine_information(LayerInformationFormat.JSON) -> \'{"Layers": ["one"]}\'',
)
CLOSED = (
    "cudart.cudaFree(4096) -> 0",
    "cudart.cudaFree(8192) -> 0",
    "cudart.cudaStreamDestroy(77) -> 0",
)


def test_the_model_and_the_line_for_trtexec(tmp_path: Path) -> None:
    found = package([packaged.bundle(tmp_path)], tmp_path / "out", "tensorrt-engine(built=false)")
    held = packaged.contents(found.path)
    assert set(held) == {"toy.onnx", "package.json"}
    (line,) = [one for one in found.lines if one.startswith("trtexec ")]
    assert "--onnx=toy.onnx --saveEngine=toy.engine --stronglyTyped" in line
    assert "--noTF32" in line and "--minShapes=x:" in line
    assert any(one.startswith("profile: x:") for one in found.lines)
    assert any(one.startswith("unverified: ") for one in found.lines)
    assert found.replay is None and "not built" in found.unrun


def test_what_is_spelled_is_asked_of_trtexec(tmp_path: Path) -> None:
    plugin = tmp_path / "libmine.so"
    plugin.write_bytes(b"code")
    asked = TensorrtPackage(
        profiles=("x:1x4..8x4..2x4",),
        workspace=256,
        builder_level=5,
        tf32=True,
        timing_cache=False,
        plugins=(str(plugin),),
        built=False,
    )
    found = package([packaged.bundle(tmp_path)], tmp_path / "out", asked)
    line = found.lines[0]
    assert "--minShapes=x:1x4 --optShapes=x:2x4 --maxShapes=x:8x4" in line
    assert "--builderOptimizationLevel=5" in line and "--memPoolSize=workspace:256M" in line
    assert "--dynamicPlugins=plugins/libmine.so" in line
    assert "--noTF32" not in line and "--timingCacheFile" not in line
    held = packaged.contents(found.path)
    assert held["plugins/libmine.so"] == b"code"
    said = json.loads(held["package.json"])["target"]
    assert "libmine" not in said and str(tmp_path) not in said


def test_an_engine_needs_tensorrt(tmp_path: Path) -> None:
    if library.explain_missing_tensorrt() is None:
        pytest.skip("TensorRT and a device are here")
    with pytest.raises(BackendMissing) as caught:
        package([packaged.bundle(tmp_path)], tmp_path / "out", "tensorrt-engine")
    assert (
        "ortune doctor env add tensorrt" in caught.value.fix and "built=false" in caught.value.fix
    )
    assert not (tmp_path / "out").exists()


def test_a_library_that_is_not_there_and_a_range_that_is_none(tmp_path: Path) -> None:
    asked = 'tensorrt-engine(built=false, plugins=["./absent.so"])'
    with pytest.raises(BadModel, match=r"no plug-in library .*absent\.so"):
        package([packaged.bundle(tmp_path)], tmp_path / "out", asked)
    with pytest.raises(BadSettings, match="not an optimization profile"):
        TensorrtPackage(profiles=("x",))
    with pytest.raises(BadSettings, match="not an optimization profile"):
        TensorrtEngine(profiles=("x",))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = com.microsoft.Gelu(x)", "an operator of com.microsoft"),
        ("y = mine.Swish(x)", "an operator of mine"),
        ("q, s, z = DynamicQuantizeLinear(x)\n y = DequantizeLinear(q, s, z)", "ranges taken"),
        ("q = QuantizeLinear(x, s, u)\n y = DequantizeLinear(q, s, u)", "zero point 0"),
        ("q = QuantizeLinear(x, s, i)\n y = DequantizeLinear(q, s, i)", "zero point 0"),
        ("q = QuantizeLinear(x, s)\n y = DequantizeLinear(q, s)", "gives uint8"),
        ("q = QuantizeLinear(x, s, n)\n y = DequantizeLinear(q, s, n)", ""),
        ("y = Relu(x)", ""),
    ],
)
def test_graphs_that_tensorrt_would_not_take(tmp_path: Path, body: str, said: str) -> None:
    weights = "<float s = {0.1}, uint8 u = {0}, int8 i = {3}, int8 n = {0}>"
    text = f"{HEAD}g (float[N,4] x) => (float[N,4] y) {weights} {{\n {body}\n}}"
    if "DynamicQ" in body:
        text = text.replace("float s = {0.1}, ", "")
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    with packaged.source(tmp_path) as source:
        why = TensorrtPackage().refuses(replace(source, models={"": path}))
    assert said in why and bool(said) == bool(why)


def test_plugins_stand_for_operators_and_other_backends_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.parser.parse_model(
            f"{HEAD}g (float[N,4] x) => (float[N,4] y) {{ y = mine.Swish(x) }}"
        ),
        path,
    )
    with packaged.source(tmp_path) as source:
        held = replace(source, models={"": path})
        assert TensorrtPackage(plugins=("a.so",)).refuses(held) == ""
        assert "'torch' does more" in TensorrtPackage().refuses(
            replace(source, backend=Torch(source="a:b"))
        )
        custom = replace(source, plan=replace(source.plan, custom_ops=("custom_ops/x.so",)))
        assert "onnxruntime's" in TensorrtPackage().refuses(custom)


def test_an_engine_is_built_in_a_worker_and_run_on_the_golden_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the recorded API: the calls are checked, and the answers are those recorded."""
    bundle = packaged.bundle(tmp_path)
    with unpack_temporarily(bundle) as held:
        samples = list(held.read_source(held.manifest.plans[0]).feeds(""))
    arrays = {f"x{at}": feed["x"] for at, (feed, _) in enumerate(samples)}
    arrays |= {f"y{at}": answer["y"] for at, (_, answer) in enumerate(samples)}
    begun = recordings.until("load", "engine.num_io_tensors")
    inspected = begun.replace("cudart.cudaSetDevice(0) -> 0", "")
    built = recordings.until("build", "config.set_memory"), *AFTER, inspected, *INSPECTED
    once = recordings.until("run", "# the same shape").replace("reads x", "reads x0")
    again = recordings.until("run", "# a larger one").removeprefix(
        recordings.until("run", "# the same shape")
    )
    ran = (
        "load",
        once.replace("writes y", "writes y0"),
        again.replace(" x", " x1").replace(" y", " y1"),
    )
    here = "* cudart.cudaGetDeviceCount() -> 0, 1"
    scripts = [
        recordings.written(tmp_path, (here, *parts), arrays, name=name)
        for name, parts in (("build", built), ("run", (*ran, *CLOSED)))
    ]
    recordings.play(monkeypatch, tmp_path, here)
    monkeypatch.setenv("ORTUNE_TRANSCRIPT", os.pathsep.join(map(str, scripts)))
    paths = [str(recordings.HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    found = package([bundle], tmp_path / "out", f'tensorrt-engine(profiles=["{RANGE}"], {PLAIN})')
    held = packaged.contents(found.path)
    assert held["toy.engine"] == b"engine"
    assert json.loads(held["toy.layers.json"]) == {"Layers": ["one"]}
    assert found.replay is not None and found.replay.difference_db == float("inf")
    assert found.unrun == "trtexec"
    assert [one.with_suffix(".rest").read_text() for one in scripts] == ["", ""]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake here")
def test_without_headers_nothing_is_built_and_that_is_said(tmp_path: Path) -> None:
    command = ["cmake", "-S", str(EXAMPLE), "-B", str(tmp_path), "-DTENSORRT_INCLUDE=NOTFOUND"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not built: " in done.stdout
    assert not list(tmp_path.glob("*swish*.so"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler here")
def test_the_kernel_compiles(tmp_path: Path) -> None:
    command = ["nvcc", "-std=c++17", "-c", str(EXAMPLE / "swish.cu"), "-o", str(tmp_path / "k.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_model_has_the_operator(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLE / "make_model.py"), str(tmp_path)], check=True)
    model = onnx.load(tmp_path / "swish.onnx")
    onnx.checker.check_model(model)
    assert [(node.domain, node.op_type) for node in model.graph.node][1] == ("example", "Swish")
