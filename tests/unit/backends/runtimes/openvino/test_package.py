"""OpenVINO's package is imported so that nothing leaves the machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("openvino")

CODE = """
import json, sys, psutil
{how}
left = [one.pid for one in psutil.Process().children(recursive=True)]
told = [name for name in sys.modules if name.startswith("openvino_telemetry")]
print(json.dumps({{"cpu": "CPU" in found.Core().available_devices, "left": left, "told": told}}))
"""
OURS = "from ortune.backends.runtimes.openvino import native; found = native.import_openvino()"


def told(how: str) -> dict[str, object]:
    command = [sys.executable, "-c", CODE.format(how=how)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_no_usage_data_is_sent() -> None:
    assert told(OURS) == {"cpu": True, "left": [], "told": []}


def test_a_program_that_imported_it_keeps_what_it_has() -> None:
    found = told(f"import openvino_telemetry; {OURS}")
    assert found["cpu"] and "openvino_telemetry" in str(found["told"])
