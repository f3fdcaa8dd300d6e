"""DirectML by its configuration: nobody ran it here, and that is said."""

from __future__ import annotations

import platform
from pathlib import Path

import onnxruntime as ort
import pytest

from ortune.backends import directml
from ortune.backends.directml import Directml
from ortune.backends.runtimes.onnxruntime import session
from ortune.core.errors import BackendMissing

elsewhere = pytest.mark.skipif(platform.system() == "Windows", reason="is about other systems")


def test_settings_that_are_not_the_default_are_written_out() -> None:
    """With a device, preference and filter would be ignored: none is given."""
    assert Directml().provider_options() == {"device_id": "0"}
    other = Directml(device=1, metacommands=False).provider_options()
    assert other == {"device_id": "1", "disable_metacommands": "true"}


def test_a_session_has_no_memory_pattern_and_runs_in_order() -> None:
    """The options before the provider itself is added, which this onnxruntime does not have."""
    made = session.make_session_options(1, "all", verbose=False)
    session.side_by_side(made, 2)
    Directml(graph_fusion=False).adapt_options(made)
    assert made.enable_mem_pattern is False
    assert made.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    assert made.get_session_config_entry("ep.dml.disable_graph_fusion") == "1"


@pytest.mark.parametrize(
    ("system", "fix", "state"),
    [
        ("Linux", directml.ELSEWHERE, "no device"),
        ("Darwin", directml.ELSEWHERE, "no device"),
        ("Windows", "pip uninstall -y onnxruntime && pip install onnxruntime-directml", None),
    ],
)
def test_it_says_what_keeps_it_from_running(
    system: str, fix: str, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    reason = Directml().missing()
    assert reason == fix
    assert Directml().state(reason) == (state or "not installed")


@elsewhere
def test_opening_it_elsewhere_names_the_provider(tmp_path: Path) -> None:
    with pytest.raises(BackendMissing, match="has no DmlExecutionProvider"):
        Directml().open(tmp_path / "none.onnx").__enter__()


def test_it_is_offered_as_unverified_and_never_by_itself() -> None:
    assert Directml().unverified == "never run on a GPU here"
    assert not Directml.automatic
