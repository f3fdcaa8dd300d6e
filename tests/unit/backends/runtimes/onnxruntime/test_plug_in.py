"""Plug-in providers: not installed, not loadable, no device; and that a session needs one."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ortune.backends import openvino
from ortune.backends.plugin import PluginProvider
from ortune.backends.runtimes.onnxruntime import checks, plug_in
from ortune.bundle.engine import consent
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel, BadSettings
from ortune.core.plugins import codec, stored
from ortune.core.plugins.spelling import parse_plugin

OPENVINO = "onnxruntime-ep-openvino"
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,64] x) => (float[1,64] y) { y = Relu(x) }"""
needs_plug_in = pytest.mark.skipif(
    OPENVINO not in plug_in.list_installed_plug_ins(), reason="needs onnxruntime-ep-openvino"
)
needs_device = pytest.mark.skipif(
    openvino.explain_missing_plugin() is not None,
    reason="the OpenVINO plug-in offers no CPU device here",
)
"""It takes Intel's CPUs alone."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "relu.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def state(backend: Backend) -> tuple[str, str]:
    reason = backend.missing()
    return backend.state(reason), reason or ""


def test_without_a_name_it_says_what_could_be_named() -> None:
    found, why = state(PluginProvider())
    assert found == "not installed"
    assert "pip install onnxruntime-ep-webgpu" in why


def test_a_package_that_is_not_there_is_not_installed() -> None:
    found, why = state(PluginProvider(package="onnxruntime-ep-nobody"))
    assert found == "not installed"
    assert why.endswith("pip install onnxruntime-ep-nobody")


def test_a_file_that_is_no_library_is_not_loadable(tmp_path: Path, model: Path) -> None:
    library = tmp_path / "provider.so"
    library.write_text("none")
    backend = PluginProvider(library=str(library))
    found, why = state(backend)
    assert found == "not loadable"
    assert str(library) in why and "does not load" in why
    with pytest.raises(BackendMissing, match="does not load"), backend.open(model):
        pass


def test_a_library_of_something_else_is_not_loadable() -> None:
    """onnxruntime's own library is none of a plug-in: it has no CreateEpFactories."""
    library = checks.list_libraries()[0]
    found, why = state(PluginProvider(library=str(library)))
    assert found == "not loadable"
    assert "CreateEpFactories" in why


@needs_plug_in
def test_a_package_that_loads_and_offers_nothing_has_no_device(model: Path) -> None:
    """A session on it is refused in words that name it: nothing falls back to the CPU."""
    backend = PluginProvider(package=OPENVINO, device="npu")
    found, why = state(backend)
    assert found == "no device"
    assert OPENVINO in why and "npu" in why
    with pytest.raises(BackendMissing, match=f"{OPENVINO} offers no device"), backend.open(model):
        pass


@needs_device
def test_what_has_a_device_computes_there(model: Path) -> None:
    backend = PluginProvider(package=OPENVINO, device="cpu", threads=1)
    assert state(backend) == ("works", "")
    with backend.open(model) as session:
        assert set(session.placement()) == {openvino.PROVIDER}
    assert backend.takes(model) == {openvino.PROVIDER: ("Relu",)}


@needs_device
def test_one_that_does_not_start_says_why(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The runtime would print that, and go on without it."""
    backend = PluginProvider(package=OPENVINO, device="cpu", options=("reshape_input=none",))
    with pytest.raises(BackendMissing, match=r"does not start here: .*shape"), backend.open(model):
        pass
    assert not capfd.readouterr().out


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"package": OPENVINO, "library": "x.so"}, "both is named"),
        ({"library": "/nowhere/x.so"}, "no library '/nowhere/x.so'"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, str], what: str) -> None:
    with pytest.raises(BadSettings, match=what):
        PluginProvider(**settings).missing()


def test_a_module_that_is_no_provider_is_refused() -> None:
    with pytest.raises(BadSettings, match="no get_library_path"):
        plug_in.explain_missing_provider(plug_in.PlugIn(package="numpy"))


def test_several_providers_of_one_library_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "two.so"
    library.touch()
    monkeypatch.setattr(
        plug_in, "register_library", lambda path, label: ("OneProvider", "TwoProvider")
    )
    with pytest.raises(BadSettings, match="several providers: OneProvider, TwoProvider"):
        plug_in.list_plug_in_devices(plug_in.PlugIn(library=str(library)))


def test_options_are_pairs() -> None:
    with pytest.raises(BadSettings, match="cannot read the setting 'fast'"):
        PluginProvider(options=("fast",))


def test_it_is_spelled_and_read_back() -> None:
    text = 'plugin(package=onnxruntime-ep-webgpu, device=gpu, options=["a=1"])'
    backend = parse_plugin(Backend, text)
    assert backend == PluginProvider(
        package="onnxruntime-ep-webgpu", device="gpu", options=("a=1",)
    )
    assert parse_plugin(Backend, str(backend)) == backend
    assert backend.runs_on == "gpu"
    assert backend.unverified == "never run on a GPU here"


def test_a_bundle_brings_no_plug_in() -> None:
    """What a file names is code: it is shown, and refused by whoever did not name it himself."""
    backend = PluginProvider(package="onnxruntime-ep-webgpu", options=("a=1",))
    assert stored.list_code_names(codec.encode(backend)) == ("onnxruntime-ep-webgpu", "a=1")
    with pytest.raises(BadModel, match="name 'onnxruntime-ep-webgpu', which its manifest"):
        consent.require_listed(backend, ())


def test_what_is_installed_is_tried() -> None:
    tried = PluginProvider.tried()
    assert tried
    assert all(one.package != OPENVINO for one in tried), "it has a backend of its own"
