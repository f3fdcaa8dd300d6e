"""A model compiled for real on any CPU: by OpenVINO inside onnxruntime-openvino 1.24.1.

The plug-in that ortune uses takes Intel CPUs alone; this older wheel takes every x86 CPU. What it
compiles it does not open again, as it lacks OpenVINO's reader of its own format: what happens to
an ortune that meets such a file is seen here too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.tools import ROOT
from tests.unit import studies

WHEEL = "onnxruntime-openvino==1.24.1"
CODE = """
import sys
from pathlib import Path
import onnxruntime as ort
from ortune.core.errors import BadModel
from ortune.backends.runtimes.onnxruntime import session
from ortune.backends.runtimes.onnxruntime.engine_cache import compile_model, list_compiled_nodes
source, out = map(Path, sys.argv[1:])
def options():
    made = session.make_session_options(1, "all", verbose=False)
    made.add_provider("OpenVINOExecutionProvider", {"device_type": "CPU"})
    return made
compile_model(source, options(), out, "OpenVINOExecutionProvider")
print(list_compiled_nodes(out))
try:
    with session.open_session(out, options(), provider="OpenVINOExecutionProvider") as opened:
        print(opened.placement())
except BadModel as error:
    print(error.what)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install = ["-m", "pip", "install", "-qq", "--no-deps", "--target", str(folder), WHEEL]
    subprocess.run([sys.executable, *install], check=True)
    return folder


def test_it_is_compiled_into_one_node(site: Path, tmp_path: Path) -> None:
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    path = os.pathsep.join((str(site), str(ROOT / "src")))
    command = [sys.executable, "-c", CODE, str(model), str(tmp_path / "out.onnx")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    nodes, opened = done.stdout.splitlines()
    assert nodes == "[CompiledNode(source='OpenVINOExecutionProvider', embedded=True)]"
    assert opened.startswith(("onnxruntime 1.24.1 does not load out.onnx", "{'OpenVINO"))
