"""A runtime that computes another function of a file is told from a file that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import onnx

BACKEND = '''
    """onnxruntime, but for quantized files, whose answers it doubles."""

    from contextlib import contextmanager
    from dataclasses import dataclass

    from ortune.backends.cpu import Cpu


    class Doubled:
        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

        def run(self, feeds):
            return {name: 2 * array for name, array in self._session.run(feeds).items()}


    @dataclass(frozen=True)
    class Doubling(Cpu):
        """Doubles the answers of quantized files."""

        title = "Doubling"
        automatic = False

        @contextmanager
        def open(self, path, *, verbose=False):
            with super().open(path, verbose=verbose) as session:
                quantized = b"QuantizeLinear" in path.read_bytes()
                yield Doubled(session) if quantized else session
'''
SEARCH = """
import json
import ortune as ot
from ortune.search import optimize
from tests.picking import Pick
optimize.Adaptive = lambda: Pick("int8-static")
for least in (20, 90):
    study = ot.optimize("m.onnx", data="data", on="doubling(threads=1)", baseline="cpu(threads=1)",
                        budget=f"snr>={least}", time=20, out=f"run{least}")
    print(json.dumps([(str(t.plan.backend), str(t.status), t.why) for t in study.trials[1:]]))
"""


def write_belongings(root: Path) -> None:
    """Write the package of a backend, a model and samples."""
    package, about = root / "site" / "doubling", root / "site" / "doubling-0.dist-info"
    for path, text in (
        (package / "__init__.py", '"""One backend."""\n'),
        (package / "backends" / "__init__.py", '"""Backends."""\n'),
        (package / "backends" / "doubling.py", dedent(BACKEND)),
        (about / "METADATA", "Metadata-Version: 2.1\nName: doubling\nVersion: 0\n"),
        (about / "entry_points.txt", "[ortune.plugins]\ndoubling = doubling\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[1,32,24,24] x) => (float[1,32,24,24] y) {
      a = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(x, w)
      r = Relu(a)
      y = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(r, w)
    }""")
    weight = rng.standard_normal((32, 32, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, root / "m.onnx")
    (root / "data").mkdir()
    for index in range(24):
        sample = rng.standard_normal((1, 32, 24, 24)).astype(np.float32)
        np.savez(root / "data" / f"{index:02}.npz", x=sample)


def test_a_file_that_keeps_the_budget_elsewhere_is_said_to(tmp_path: Path) -> None:
    write_belongings(tmp_path)
    paths = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", SEARCH],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept, missed = map(json.loads, done.stdout.splitlines()[-2:])
    assert [row[:2] for row in (*kept, *missed)] == [["doubling(threads=1)", "fails"]] * 2
    assert "Doubling computes another function" in kept[0][2]
    assert "another function" not in missed[0][2]
