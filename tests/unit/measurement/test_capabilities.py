"""What an environment offers is asked of a worker that runs in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.backends.cpu import Cpu
from ortune.core.errors import BackendMissing, BadSettings
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.measurement.capabilities import capabilities, demand
from ortune.measurement.job import WorkerJob
from ortune.measurement.machine.machine import machine, versions
from ortune.measurement.process import Worker
from ortune.runtimes.onnxruntime import keys, session


def test_this_interpreter_answers_what_is_read_here() -> None:
    found = capabilities(Cpu())
    assert found.missing is None
    assert found.effective_cpus == effective_cpus()
    assert found.usable_cpus == usable_cpus()
    assert set(found.instruction_sets) == instruction_sets()
    assert found.versions == versions() and found.machine == machine()
    assert "CPUExecutionProvider" in found.providers
    assert found.devices["CPUExecutionProvider"] == ("CPU",)


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = capabilities(Cpu())
    monkeypatch.setattr(Worker, "__init__", lambda *args, **kwargs: pytest.fail("asked again"))
    assert capabilities(Cpu()) is first


def test_the_callers_own_installation_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "missing", lambda: pytest.fail("asked here"))
    monkeypatch.setattr(keys, "libraries", lambda *args: pytest.fail("searched here"))
    assert demand(Cpu(spin=False)).missing is None


def test_an_unknown_setting_is_refused_in_two_lines() -> None:
    with pytest.raises(BadSettings, match="no session key") as caught:
        capabilities(Cpu(config=("session.intra_op=1",)))
    assert len(str(caught.value).splitlines()) == 2 and "such as" in caught.value.fix


def test_a_backend_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    torch = pytest.importorskip("ortune.backends.torch").Torch
    with pytest.raises(BackendMissing, match="backend 'torch' cannot run here") as caught:
        demand(torch(source="pkg:module", compile=True))
    assert caught.value.fix


def test_an_unknown_environment_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="no environment 'mars' on this machine") as caught:
        Worker(WorkerJob({}, Cpu(), {}, tmp_path / "job", environment="mars"))
    assert len(str(caught.value).splitlines()) == 2
    assert not (tmp_path / "job").exists()
