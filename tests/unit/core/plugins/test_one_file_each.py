"""A package of the user's own adds one of each kind by one file each, and every verb finds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import onnx
import pytest

from ortune.core.plugins import catalog

FILES = {
    "transforms/drop_double_neg.py": '''
        """Neg of Neg."""

        from dataclasses import dataclass

        from ortune.core.step import Stage, Transform


        @dataclass(frozen=True)
        class DropDoubleNeg(Transform):
            """Neg(Neg(x)) is x."""

            stage = Stage.FUSE

            def apply(self, model):
                found = 0
                for outer in list(model.graph):
                    inner = outer.inputs[0].producer() if outer.op_type == "Neg" else None
                    if inner is not None and inner.op_type == "Neg":
                        outer.outputs[0].replace_all_uses_with(inner.inputs[0])
                        model.graph.remove([outer, inner], safe=True)
                        found += 1
                return found
        ''',
    "quantizers/round_weights.py": '''
        """Weights with few digits."""

        from dataclasses import dataclass

        import onnx_ir as ir

        from ortune.core.step import Quantizer


        @dataclass(frozen=True)
        class RoundWeights(Quantizer):
            """Rounds every weight.

            Attributes:
                digits: Behind the point.
            """

            needs_data = False
            digits: int = 1

            def apply(self, model, ranges):
                for value in model.graph.initializers.values():
                    value.const_value = ir.tensor(value.const_value.numpy().round(self.digits))
                return len(model.graph.initializers)
        ''',
    "observers/widened.py": '''
        """All values and a margin."""

        from dataclasses import dataclass

        from ortune.core.observer import Observer, Range


        @dataclass(frozen=True)
        class Widened(Observer):
            """Smallest to largest value, times a factor.

            Attributes:
                by: The factor.
            """

            by: float = 2.0

            def start(self):
                return _Widened(self.by)


        class _Widened:
            def __init__(self, by):
                self._by, self._low, self._high = by, 0.0, 0.0

            def update(self, turn, values):
                self._low = min(self._low, float(values.min()))
                self._high = max(self._high, float(values.max()))

            def result(self):
                return Range(self._low * self._by, self._high * self._by)
        ''',
    "augmentations/negate.py": '''
        """The other sign."""

        from dataclasses import dataclass

        from ortune.core.augmentation import Augmentation


        @dataclass(frozen=True)
        class Negate(Augmentation):
            """Adds every sample with the other sign."""

            @property
            def names(self):
                return ()

            def alter(self, values, rng):
                return -values
        ''',
    "backends/steady.py": '''
        """A clock that knows one duration."""

        from contextlib import contextmanager
        from dataclasses import dataclass
        from typing import Annotated

        from ortune.backends.cpu import Cpu
        from ortune.core.backend import Backend
        from ortune.core.plugins import stored


        @dataclass(frozen=True)
        class Steady(Backend):
            """Answers like onnxruntime; every run takes 0.1 ms by its own clock.

            Attributes:
                threads: Ignored.
                config: Any other key, as ``key=value``.
            """

            automatic = False
            config: Annotated[
                tuple[str, ...], stored.pairs({"steady.pace": stored.word("calm", "brisk")})
            ] = ()

            @contextmanager
            def open(self, path, *, verbose=False):
                with Cpu(threads=1).open(path) as session:
                    yield _Session(session)


        class _Session:
            def __init__(self, session):
                self._session, self._now = session, 0

            def run(self, feeds):
                self._now += 100_000
                return self._session.run(feeds)

            def placement(self):
                return self._session.placement()

            def clock(self):
                return self._now

            def waited(self):
                return 0
        ''',
    "workloads/twice.py": '''
        """Two runs at a time."""

        from dataclasses import dataclass

        from ortune.core.workload import Driven, Workload


        @dataclass(frozen=True)
        class Twice(Workload):
            """Every run is done twice: an entry is the time of both.

            Attributes:
                batch: Samples stacked into one run.
            """

            def drive(self, rig, span):
                lane, taken = rig.lanes[0], []
                for position in range(span.at, span.at + span.drop + span.runs):
                    start = lane.clock()
                    for session, feeds in (*lane.calls(position), *lane.calls(position)):
                        session.run(feeds)
                    taken.append(lane.clock() - start)
                kept = taken[span.drop :]
                return Driven(kept, [0.0] * len(kept), 2 * len(taken))
        ''',
    "metrics/same_signs.py": '''
        """Signs alone."""

        from dataclasses import dataclass

        import numpy as np

        from ortune.core.metric import Metric


        @dataclass(frozen=True)
        class SameSigns(Metric):
            """Share of output values that keep their sign."""

            continuous = True

            def record(self, expected, actual, label):
                same = [np.sign(expected[n]) == np.sign(actual[n]) for n in expected]
                return float(np.mean(same))
        ''',
    "sections/tries.py": '''
        """How many plans were tried."""

        from dataclasses import dataclass

        from ortune.core.section import Heading, Section, Text


        @dataclass(frozen=True)
        class Tries(Section):
            """A number."""

            order = 65

            def blocks(self, study):
                yield Heading("Tries of our own")
                yield Text(f"There were {len(study.trials)} tries.")
        ''',
    "samples/negated.py": '''
        """A model of four operators."""

        from dataclasses import dataclass

        import numpy as np
        import onnx

        from ortune.core.sample import Sample

        TEXT = """
        <ir_version: 9, opset_import: ["": 17]>
        negated (float[N,4] x) => (float[N,2] y)
        <float[4,2] w = {0.26, 0.51, 0.76, 1.01, -0.26, -0.51, 0.76, -1.01}>
        { a = Neg(x) b = Neg(a) c = MatMul(b, w) y = Relu(c) }
        """


        @dataclass(frozen=True)
        class Negated(Sample):
            """Two Negs, and samples from 0 to 1."""

            budget = "max-error<=0.01"
            licence = "none"

            def write(self, folder):
                onnx.save(onnx.parser.parse_model(TEXT), folder / "model.onnx")
                (folder / "data").mkdir()
                x = np.linspace(0, 1, 256, dtype=np.float32).reshape(64, 4)
                np.savez(folder / "data" / "all.npz", x=x)
        ''',
    "targets/plan_notes.py": '''
        """A text."""

        from dataclasses import dataclass

        from ortune.bundle.target import Replay, Target


        @dataclass(frozen=True)
        class PlanNotes(Target):
            """The name of the plan, in a file."""

            def write(self, source, folder):
                (folder / "plan.txt").write_text(source.plan.plan)
                return ("cat plan.txt",)

            def replay(self, source, folder):
                assert (folder / "plan.txt").read_text() == source.plan.plan
                return Replay("reading it", float("inf"))
        ''',
    "cli/count_nodes.py": '''
        """Count the nodes of a model."""

        import click
        import onnx


        @click.command()
        @click.argument("model")
        def command(model):
            """Print how many nodes MODEL has."""
            click.echo(f"{len(onnx.load(model).graph.node)} nodes")
        ''',
}

VERBS = {
    "help": "--help",
    "count": "count-nodes D/model.onnx",
    "apply": "apply D/model.onnx drop-double-neg 'round-weights(digits=1)' -o s.onnx",
    "calibrate": "calibrate D/model.onnx --data D/data --observer 'widened(by=3)'"
    " --augment negate --step 'int8-static(min_side=1, head=true)' -o ranges.json",
    "bench": "bench D/model.onnx --on steady --workload twice --time 0.1 --sets 1"
    " --json bench.json",
    "optimize": "optimize D/model.onnx --data D/data --on 'steady(config=[\"steady.pace=calm\"])'"
    " --budget 'same-signs>=0.99' --time 1s --quiet --json study.json -o run",
    "refused": "optimize D/model.onnx --data D/data --on 'steady(config=[\"steady.log=x\"])'"
    " --budget 'same-signs>=0.99' --time 1s --quiet -o never",
    "report": "report run -o report.md",
    "pack": "pack run --for plan-notes -o packed",
}

RUN = """
import contextlib, io, json, pathlib, shlex, sys
from ortune.cli.main import main
from ortune.core.plugins import catalog
from ortune.core.sample import Sample
pathlib.Path("D").mkdir()
catalog.load_plugin(Sample, "negated")().write(pathlib.Path("D"))
ends = {}
for name, words in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(words))
    ends[name] = code, out.getvalue(), err.getvalue()
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, announced to Python as an installed one is; the verbs run beside it."""
    root = tmp_path_factory.mktemp("one_file_each")
    for name, text in FILES.items():
        file = root / "site" / "extra" / name
        file.parent.mkdir(parents=True)
        file.write_text(dedent(text).lstrip(), encoding="utf-8")
        (file.parent / "__init__.py").touch()
    (root / "site" / "extra" / "__init__.py").touch()
    info = root / "site" / "extra-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ortune.plugins]\nextra = extra\n")
    return root


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, str]:
    """What each verb printed; one process runs them all, as each would find the files anew."""
    paths = [str(folder / "site"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(VERBS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    failed = {name: end for name, end in found.items() if end[0] not in (0, 1)}
    assert failed.keys() == {"refused"}
    return {name: out + err for name, (_, out, err) in found.items()}


def test_there_is_one_file_of_each_kind() -> None:
    """A folder that the catalog learns gets its file here."""
    assert sorted(Path(name).parent.name for name in FILES) == sorted([*catalog.BASES, "cli"])


def test_sample(folder: Path, ends: dict[str, str]) -> None:
    """It writes the model and the data that all others run on."""
    assert (folder / "D" / "model.onnx").is_file() and any((folder / "D" / "data").iterdir())


def test_verb(ends: dict[str, str]) -> None:
    """It is listed with its first line, and runs."""
    assert "count-nodes" in ends["help"] and "Count the nodes of a model" in ends["help"]
    assert ends["count"] == "4 nodes\n"


def test_transform_and_quantizer(folder: Path, ends: dict[str, str]) -> None:
    """Applied by name, in the order given."""
    model = onnx.load(folder / "s.onnx")
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Relu"]
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).ravel() == pytest.approx(
        [0.3, 0.5, 0.8, 1.0, -0.3, -0.5, 0.8, -1.0]
    )


def test_observer_and_augmentation(folder: Path, ends: dict[str, str]) -> None:
    """Ranges are three times as wide, and reach below zero by the negated samples alone."""
    found = json.loads((folder / "ranges.json").read_text())
    assert found["tensors"] == [{"name": "b", "low": -3.0, "high": 3.0}]


def test_backend_and_workload(folder: Path, ends: dict[str, str]) -> None:
    """Two runs of 0.1 ms are an entry."""
    (row,) = json.loads((folder / "bench.json").read_text())["rows"]
    assert row["backend"].startswith("steady") and row["p50_ns"] == 200_000


def test_stored_field(ends: dict[str, str]) -> None:
    """The backend's own file says what a run may set of it; the rest is refused."""
    assert ends["refused"].startswith('ortune optimize: steady(config=["steady.log=x"]): ')
    assert "'steady.log' is a setting that a file must not change" in ends["refused"]


def test_metric(folder: Path, ends: dict[str, str]) -> None:
    """Plans are judged by their signs."""
    found: dict[str, Any] = json.loads((folder / "study.json").read_text())
    tried = {one["plan"] for one in found["trials"]}
    assert {"as-is @ cpu", 'as-is @ steady(config=["steady.pace=calm"])'} <= tried
    assert found["best"]["score"]["metric"] == "same-signs"


def test_section(folder: Path, ends: dict[str, str]) -> None:
    """It stands in the report."""
    text = (folder / "report.md").read_text()
    assert "Tries of our own" in text and "There were" in text


def test_target(folder: Path, ends: dict[str, str]) -> None:
    """It is written and run again."""
    assert (folder / "packed" / "plan.txt").read_text() == "as-is @ cpu"
    assert "checked by reading it: equal answers" in ends["pack"]
    assert "cat plan.txt" in ends["pack"]
