"""A runtime that computes another function of a file is told from a file that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import numpy as np
import onnx
import pytest
from onnx import parser
from tests.unit import wrong_models

from ortune.analysis.conversion.apply import apply
from ortune.analysis.conversion.convert import convert
from ortune.analysis.verification.verify import verify
from ortune.backends.cpu import Cpu
from ortune.core.event import Event, Note
from ortune.core.trial import Verdict
from ortune.search.optimize import optimize

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
                yield Doubled(session) if self.is_doubled(path) else session

        def is_doubled(self, path):
            return b"QuantizeLinear" in path.read_bytes()

'''
JOINING = '''
    """onnxruntime, but that a model of a single output gives the double of it."""

    from dataclasses import dataclass

    import onnx
    from doubling.backends import doubling


    @dataclass(frozen=True)
    class Joining(doubling.Doubling):
        """Doubles the answer where it is the only output."""

        title = "Joining"

        def is_doubled(self, path):
            return len(onnx.load(path, load_external_data=False).graph.output) == 1

'''
MISREADING = '''
    """onnxruntime, but that a MaxPool gets the double of what a pair hands to it."""

    from contextlib import contextmanager
    from dataclasses import dataclass
    from pathlib import Path
    from tempfile import NamedTemporaryFile

    import onnx

    from ortune.backends.cpu import Cpu


    @dataclass(frozen=True)
    class Misreading(Cpu):
        """Doubles what pairs hand to MaxPool."""

        title = "Misreading"
        automatic = False

        @contextmanager
        def open(self, path, *, verbose=False):
            model = onnx.load(path, load_external_data=False)
            weights = {weight.name: weight for weight in model.graph.initializer}
            read = [n.input[0] for n in model.graph.node if n.op_type == "MaxPool"]
            for node in model.graph.node:
                if node.op_type == "DequantizeLinear" and node.output[0] in read:
                    doubled = 2 * onnx.numpy_helper.to_array(weights[node.input[1]])
                    node.input[1] = f"{node.name}_doubled"
                    tensor = onnx.numpy_helper.from_array(doubled, node.input[1])
                    model.graph.initializer.append(tensor)
            with NamedTemporaryFile(dir=path.parent, suffix=".onnx") as wrong:
                onnx.save(model, wrong.name)
                with super().open(Path(wrong.name), verbose=verbose) as session:
                    yield session
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


MENDED = """
import json
import ortune as ot
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan, Proposal
from ortune.search import optimize
from ortune.search.expectation.candidates import list_mended_plans
from tests.picking import Pick

class Mend(Pick):
    def next(self, view):
        if len(view.trials) < 2:
            return super().next(view)
        for option in list_mended_plans(view):
            return Proposal(option.plan, option.stage, option.why, "full")
        return None

optimize.Adaptive = lambda: Mend("int8-static")
study = ot.optimize("m.onnx", data="data", on="misreading(threads=1)", baseline="cpu(threads=1)",
                    budget="snr>=20", time=60, out="mended")
rows = [t for t in study.trials[1:] if t.part == "search"]
print(json.dumps([(str(t.plan), str(t.score.verdict), dict(t.misreading.pairs) if t.misreading
                   else None) for t in rows]))
"""
NAMED = """
import json
import ortune as ot
from ortune.analysis.verification.verify import verify
ot.apply("m.onnx", ["int8-static"], data="data", out="q.onnx")
judged = verify("q.onnx", "q.onnx", on="misreading(threads=1)", data="data", budget="snr>=60",
                bisect=True, out="why")
print(json.dumps([judged.bisection.tensor, judged.bisection.nodes, judged.bisection.snr_db]))
joined = verify("m.onnx", "m.onnx", on="joining(threads=1)", data="data", budget="snr>=60",
                bisect=True, out="why")
print(json.dumps([joined.bisection.tensor, joined.bisection.note]))
"""


def write_belongings(root: Path) -> None:
    """Write the package of a backend, a model and samples."""
    package, about = root / "site" / "doubling", root / "site" / "doubling-0.dist-info"
    for path, text in (
        (package / "__init__.py", '"""Three backends."""\n'),
        (package / "backends" / "__init__.py", '"""Backends."""\n'),
        (package / "backends" / "doubling.py", dedent(BACKEND)),
        (package / "backends" / "joining.py", dedent(JOINING)),
        (package / "backends" / "misreading.py", dedent(MISREADING)),
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
      p = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(r)
      b = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(p, w)
      q = Relu(b)
      y = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(q, w)
    }""")
    weight = rng.standard_normal((32, 32, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, root / "m.onnx")
    (root / "data").mkdir()
    for index in range(24):
        sample = rng.standard_normal((1, 32, 24, 24)).astype(np.float32)
        np.savez(root / "data" / f"{index:02}.npz", x=sample)


def run_beside_belongings(code: str, root: Path) -> list[str]:
    """Run code where the package is found, its workers forked; return the lines that it prints."""
    code = f"from tests import zygote\nwith zygote.starting():\n{indent(code, ' ' * 4)}"
    paths = os.pathsep.join([str(root / "site"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_file_that_keeps_the_budget_elsewhere_is_said_to(tmp_path: Path) -> None:
    write_belongings(tmp_path)
    kept, missed = map(json.loads, run_beside_belongings(SEARCH, tmp_path)[-2:])
    assert [row[:2] for row in (*kept, *missed)] == [["doubling(threads=1)", "fails"]] * 2
    assert "Doubling computes another function" in kept[0][2]
    assert "another function" not in missed[0][2]


def test_verify_names_the_node_that_a_runtime_misreads(tmp_path: Path) -> None:
    write_belongings(tmp_path)
    *_, named, joined = map(json.loads, run_beside_belongings(NAMED, tmp_path))
    tensor, nodes, snr = named
    assert (tensor, nodes) == ("r_dq", ["r_dq"]) and snr < 10
    assert joined[0] == "" and "wrong where it joins operators" in joined[1]


def test_the_pair_that_a_runtime_misreads_is_left_out_and_named(tmp_path: Path) -> None:
    write_belongings(tmp_path)
    failed, mended = json.loads(run_beside_belongings(MENDED, tmp_path)[-1])
    assert failed[1:] == ["fails", {"r": "Relu, uint8 pair, MaxPool"}]
    assert "drop-pairs(tensors=[r])" in mended[0] and mended[1] != "fails" and mended[2] is None


# Verbs name what makes a model disagree with itself, and judge by what the file says.


def saved(text: str, folder: Path) -> Path:
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (wrong_models.POOLED, "basic"),
        (wrong_models.DOUBLE, "all"),
        (wrong_models.NORMALIZED, "extended"),
        (wrong_models.CLIPPED, "extended"),
    ],
)
def test_convert_writes_what_the_source_says(text: str, level: str, tmp_path: Path) -> None:
    source, out = saved(text, tmp_path), tmp_path / "out.onnx"
    converted = convert(source, out, opt_level=level)
    assert any("is left out here" in note for note in converted.notes)
    assert min(float(str(score["value"])) for score in converted.compared) > 0.99
    dims = onnx.load(source).graph.input[0].type.tensor_type.shape.dim
    shape = [dim.dim_value or 2 for dim in dims]
    dtype = np.float64 if text == wrong_models.DOUBLE else np.float32
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    plain = Cpu(level="disabled")
    with plain.open(source) as before, plain.open(out) as after:
        expected, actual = before.run({"x": x})["y"], after.run({"x": x})["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_verify_judges_by_the_file_and_not_by_the_optimizer(tmp_path: Path) -> None:
    source = saved(wrong_models.POOLED, tmp_path)
    same = verify(source, source)
    assert same.good and "Pad_Fusion" in same.doubt
    folded = tmp_path / "folded.onnx"
    Cpu(level="basic").save(source, folded)
    assert "Pad" not in {node.op_type for node in onnx.load(folded).graph.node}
    other = verify(source, folded)
    assert other.verdict is Verdict.FAILS and not other.good


def test_random_models_are_said_to_be_so(tmp_path: Path) -> None:
    source, notes = saved(wrong_models.NOISY, tmp_path), []

    def listen(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    judged = verify(source, source)
    assert "does not agree with itself" in judged.doubt and not judged.good
    assert verify(source, source, ignore_output=("y",)).good
    converted = convert(source, tmp_path / "out.onnx")
    assert any("does not agree with itself" in note for note in converted.notes)
    assert all(float(str(score["value"])) > 0.99 for score in converted.compared)
    apply(source, ["simplify"], out=tmp_path / "clean.onnx", sink=listen)
    assert any("does not agree with itself" in text for text in notes)
    alone = saved(wrong_models.SEEDED, tmp_path)
    assert convert(alone, tmp_path / "out.onnx", force=True).compared == []


def test_a_search_leaves_the_wrong_optimizer_out_of_every_plan(tmp_path: Path) -> None:
    source = saved(wrong_models.POOLED, tmp_path)
    study = optimize(source, out=tmp_path / "run", on="cpu(threads=1)", time=4)
    backends = [trial.plan.backend for trial in study.trials]
    assert backends and all("Pad_Fusion" in backend.disable for backend in backends)  # type: ignore[attr-defined]
    assert "Pad_Fusion" in study.header.doubt
