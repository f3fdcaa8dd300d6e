"""DirectML by its configuration: nobody ran it here, and that is said."""

from __future__ import annotations

import platform
from pathlib import Path

import onnxruntime as ort
import pytest

from ortune.backends.directml import Directml
from ortune.core.errors import BackendMissing
from ortune.runtimes.onnxruntime import session
from ortune.runtimes.onnxruntime.providers import directml

elsewhere = pytest.mark.skipif(platform.system() == "Windows", reason="is about other systems")


def test_the_provider_is_told_the_device_alone_by_default() -> None:
    """With a device, preference and filter would be ignored: none is given."""
    told = Directml().configuration()
    assert told.options == {"device_id": "0"}
    assert told.keys == {}


def test_every_other_setting_is_written_out() -> None:
    told = Directml(device=1, metacommands=False, graph_fusion=False).configuration()
    assert told.options == {"device_id": "1", "disable_metacommands": "true"}
    assert told.keys == {"ep.dml.disable_graph_fusion": "1"}


def test_a_session_has_no_memory_pattern_and_runs_in_order() -> None:
    """The options before the provider itself is added, which this onnxruntime does not have."""
    made = session.options(1, "all", verbose=False)
    session.side_by_side(made, 2)
    told = directml.Configuration({}, {"ep.dml.disable_graph_fusion": "1"})
    directml.prepared(made, told)
    assert made.enable_mem_pattern is False
    assert made.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    assert made.get_session_config_entry("ep.dml.disable_graph_fusion") == "1"


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_elsewhere_it_says_that_it_is_of_windows(system: str) -> None:
    assert directml.missing(system) == directml.ELSEWHERE
    assert Directml().state(directml.ELSEWHERE) == "no device"


def test_on_windows_it_says_what_to_install_in_the_place_of_what() -> None:
    reason = directml.missing("Windows")
    assert reason is not None
    assert reason == "pip uninstall -y onnxruntime && pip install onnxruntime-directml"
    assert Directml().state(reason) == "not installed"


@elsewhere
def test_opening_it_elsewhere_names_the_provider(tmp_path: Path) -> None:
    with pytest.raises(BackendMissing, match="has no DmlExecutionProvider"):
        Directml().open(tmp_path / "none.onnx").__enter__()


def test_it_is_offered_as_unverified_and_never_by_itself() -> None:
    assert Directml().unverified == "never run on a GPU here"
    assert not Directml.automatic
