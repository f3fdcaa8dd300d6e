"""What waits until it is used, in a process of its own: this one may have used it."""

import json
import subprocess
import sys

CODE = """
import json, sys
from ortune import inspect
import onnx_ir as ir
before = "sympy.core" in sys.modules
total = str(ir.SymbolicDim("n + m * 2") * 3)
import sympy
print(json.dumps([before, total, "sympy.core" in sys.modules, int(sympy.Max(1, 2))]))
"""


def test_arithmetic_with_named_dimensions_is_loaded_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, "6*m + 3*n", True, 2]
