"""Weights of gigabytes go through `simplify` as views of the file; folding holds few of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper
from tests.e2e.test_large_model import chain

_LIMIT = int(1.5 * (1 << 30))
_SCRIPT = """
import sys
from pathlib import Path
from ortune.graph.io import file
from ortune.graph.ir.edit import take_notes
from ortune.transforms.simplify import Simplify

model = file.load(Path(sys.argv[1]))
Simplify().apply(model)
print(take_notes(model))
file.save(model, Path(sys.argv[2]))
status = Path("/proc/self/status").read_text().split()
print(sum(node.op_type == "Transpose" for node in model.graph))
print(int(status[status.index("RssAnon:") + 1]) * 1024)
"""


def transposed(path: Path) -> Path:
    """Put a Transpose between every weight and the product that reads it."""
    proto = onnx.load(path, load_external_data=False)
    products = list(proto.graph.node)
    del proto.graph.node[:]
    for node in products:
        name = f"{node.input[1]}_t"
        turn = helper.make_node("Transpose", [node.input[1]], [name], perm=[1, 0])
        node.input[1] = name
        proto.graph.node.extend([turn, node])
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_four_gigabytes_of_transposed_weights(tmp_path: Path) -> None:
    """What would not fit stays in the graph, and is named."""
    path = transposed(chain(tmp_path, layers=64, width=4096))
    command = [sys.executable, "-c", _SCRIPT, str(path), str(tmp_path / "out" / "n.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, left, anonymous = done.stdout.splitlines()
    assert "would fill memory" in said
    assert int(left) == 64 - 16
    assert int(anonymous) < _LIMIT
