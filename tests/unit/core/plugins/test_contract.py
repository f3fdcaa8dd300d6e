"""Every plugin, found by listing its folder, keeps the contract. A new file is tested at once."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from ortune import testing
from ortune.backends.cpu import Cpu
from ortune.core.plugins import catalog

HEAVY = {"onnx_ir", "onnxscript", "onnxruntime", "torch", "onnx", "PIL", "openvino"}


def test_every_folder_has_entries() -> None:
    assert {folder for folder, _ in testing.entries()} == set(catalog.BASES)


@pytest.mark.parametrize(("folder", "name"), testing.entries())
def test_contract(folder: str, name: str) -> None:
    testing.check_contract(folder, name)


def test_a_plugin_that_breaks_the_contract_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Bad(Cpu):
        """Says nothing of its field."""

        extra: int = 0

    monkeypatch.setattr(catalog, "load_plugin", lambda base, name: Bad)
    with pytest.raises(AssertionError, match="leaves out extra"):
        testing.check_contract("backends", "cpu")


def test_backends_and_metrics_import_nothing_heavy() -> None:
    """The command line lists them, and workers import them."""
    code = (
        "import sys\n"
        "from ortune.core.plugins import catalog\n"
        "for folder in ('backends', 'metrics', 'observers', 'workloads'):\n"
        "    base = catalog.base_of(folder)\n"
        "    for name in catalog.list_plugins(base): catalog.load_plugin(base, name)\n"
        "print(','.join(sorted(m for m in sys.modules if '.' not in m)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.strip().split(","))


def test_the_worker_never_imports_onnx_ir() -> None:
    code = "import sys, ortune.measurement.worker; print('onnx_ir' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
