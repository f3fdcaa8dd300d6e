"""``--on``: what runs here, and what only an environment of this machine offers."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit import environments

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.errors import BackendMissing, BadSettings
from ortune.measurement import process as asking
from ortune.measurement.environments.installed import add_environment
from ortune.search import targets
from ortune.search.targets import read_targets, spell_on


@pytest.fixture
def no_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this Python's own environment OpenVINO is said to be missing; a linked one has it."""
    environments.linked(monkeypatch)
    real = asking.query_capabilities

    def here(backend: Backend, environment: str = HERE) -> Capabilities:
        if environment == HERE and backend.name() != "cpu":
            return Capabilities(missing=f"pip install {backend.name()}", state="not installed")
        return real(backend, environment)

    monkeypatch.setattr(asking, "query_capabilities", here)
    monkeypatch.setattr(targets, "query_capabilities", here)


@pytest.mark.usefixtures("no_openvino")
def test_auto_looks_into_all_environments() -> None:
    assert [target.backend.name() for target in read_targets("auto")] == ["cpu"]
    add_environment("openvino", "vino")
    add_environment("openvino", "second")
    found = read_targets("auto")
    names = [(one.backend.name(), one.environment) for one in found]
    assert names == [("cpu", HERE), ("openvino", "second")]
    assert spell_on("auto", found) == "auto,openvino in second"
    assert spell_on("auto", found[:1]) == "auto" and spell_on("cpu", found) == "cpu"


@pytest.mark.usefixtures("no_openvino")
def test_an_environment_is_named() -> None:
    add_environment("openvino", "vino")
    (cpu, vino) = read_targets("cpu(threads=1),openvino(threads=1) in vino")
    assert cpu == replace(cpu, backend=Cpu(threads=1), environment=HERE)
    assert (vino.environment, vino.pinned) == ("vino", frozenset({"threads"}))
    with pytest.raises(BackendMissing) as missing:
        read_targets("openvino")
    assert missing.value.fix == '--on "openvino in vino", or pip install openvino'
    with pytest.raises(BadSettings, match="no environment 'gone' on this machine"):
        read_targets("openvino in gone")


@pytest.mark.parametrize("name", ["vino"])
@pytest.mark.usefixtures("no_openvino")
def test_one_backend_runs_in_one_place(name: str) -> None:
    add_environment("openvino", name)
    with pytest.raises(BadSettings, match="cpu is asked for in two places"):
        read_targets(f"cpu,cpu(level=basic) in {name}")


def test_a_missing_backend_that_no_environment_has_keeps_its_fix() -> None:
    answer: Any = Capabilities(missing="pip install openvino", state="not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "query_capabilities", lambda *_: answer)
        with pytest.raises(BackendMissing) as missing:
            read_targets("openvino")
    assert missing.value.fix == "pip install openvino"
