"""The reader in one file: what ortune itself does with a bundle, without ortune."""

from __future__ import annotations

import ast
import builtins
import dis
import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
from tests.unit import studies
from tests.unit.bundle import several, standalone
from tests.unit.studies import MODEL

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.pack import pack
from ortune.cli.main import main
from ortune.core.backend import Backend
from ortune.core.plugins import codec
from ortune.engine.load import load
from ortune.engine.reader import sessions
from ortune.engine.reader.generate import reader, source
from ortune.engine.reader.tables import BACKENDS, DEFAULTS
from ortune.runtimes.onnxruntime import cpu_options
from ortune.runtimes.openvino import properties

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)
SETTINGS: list[Backend] = [
    Cpu(),
    Cpu(threads=1, level="basic", disable=("BiasGeluFusion",), prepack=False),
    Cpu(threads=2, spin=False, parallel=True, inter_threads=2, memory_pattern=False),
    Cpu(threads=2, spin_us=100, spin_backoff=8, affinity="2", arena=False, block_base=4),
    Cpu(flush_denormals=True, fast_gelu=True, cast_chains=True, nbits_block=-1),
    Cpu(arena_growth="as-requested", config=("session.qdqisint8allowed=1",)),
    Openvino(),
    Openvino(threads=2, precision="bf16", hint="throughput", streams=2, pinning="off"),
    Openvino(hyper_threading="off", cores="performance", flush_denormals=True),
    Openvino(config=("KV_CACHE_PRECISION=f16",)),
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return pack(studies.study(tmp_path), tmp_path / "toy.ortune", reader=True)


class TestText:
    def test_it_is_made_anew_and_carried_by_bundles(self, bundle: Path, tmp_path: Path) -> None:
        source.cache_clear()
        with zipfile.ZipFile(bundle) as file:
            assert file.read("reader.py").decode() == source()
        assert reader(tmp_path / "r.py").read_text() == source()
        load(bundle).close()

    def test_it_imports_numpy_and_onnxruntime_alone(self) -> None:
        found = set()
        for node in ast.walk(ast.parse(source())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
        optional = {"ml_dtypes", "onnxruntime_ep_openvino", "openvino"}
        assert found - set(sys.stdlib_module_names) - optional == {"numpy", "onnxruntime"}

    def test_every_name_in_it_is_defined_in_it(self) -> None:
        known = set(vars(standalone.reader())) | set(dir(builtins))
        code = compile(source(), "reader.py", "exec")
        assert sorted({*globals_of(code)} - known - {"__annotations__"}) == []

    def test_its_tables_are_ours(self) -> None:
        held = standalone.reader()
        assert json.loads(json.dumps(BACKENDS)) == held.BACKENDS
        assert json.loads(json.dumps(DEFAULTS)) == held.DEFAULTS

    def test_its_size_is_one_that_a_bundle_may_carry(self) -> None:
        assert len(source()) < 200_000


def globals_of(code: CodeType) -> Iterator[str]:
    """Yield the names that code reads from its module."""
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            yield str(one.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from globals_of(inner)


@pytest.mark.parametrize("backend", SETTINGS, ids=str)
def test_the_runtime_is_given_what_the_backend_gives_it(backend: Any) -> None:
    fields = sessions.completed(json.loads(json.dumps(codec.encode(backend))))
    default = sessions.completed({"is": f"backends/{backend.name()}"})
    if isinstance(backend, Cpu):
        assert cpu_options.entries(fields, default) == backend.entries()
    else:
        assert properties.made(fields, default) == backend.properties()


class TestOpening:
    def test_it_answers_as_the_engine_does(self, bundle: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = standalone.reader().load(bundle)
        with model, load(bundle) as engine:
            for seed in range(3):
                x = np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)
                np.testing.assert_array_equal(model(x=x)["y"], engine(x=x)["y"])
            assert "cpu(threads=1)" in model.plan and not model.fallback
        with pytest.raises(standalone.reader().OrtuneError, match="closed"):
            model(x=X)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"z": X}, ("no input 'z'", "'x' is missing", "Got: z", "expected: x")),
            ({"x": X.astype(np.float64)}, ("Got float64[1, 4]", "expected float32[N, 4]")),
            ({"x": X[0]}, ("Got float32[4]", "expected float32[N, 4]")),
        ],
    )
    def test_wrong_inputs(self, bundle: Path, given: Any, words: tuple[str, ...]) -> None:
        alone = standalone.reader()
        with alone.load(bundle) as model, pytest.raises(alone.BadData) as caught:
            model(**given)
        assert all(word in str(caught.value) for word in words), caught.value

    def test_of_several_plans_the_first_that_it_runs(self, tmp_path: Path) -> None:
        path = pack(several.study(tmp_path), tmp_path / "two.ortune", per_backend=True)
        with pytest.warns(RuntimeWarning, match="its fastest plan cannot run here") as caught:
            model = standalone.reader().load(path)
        assert len(caught) == 1
        with model:
            assert "cpu" in model.plan
            np.testing.assert_array_equal(model(x=X)["y"], Y)

    def test_a_plan_that_ortune_alone_runs(self, tmp_path: Path) -> None:
        from ortune_toys.backends.scripted import Scripted

        study = studies.study(tmp_path, backend=Scripted())
        path = pack(study, tmp_path / "toy.ortune")
        with pytest.warns(RuntimeWarning, match="the original runs on the CPU") as caught:
            model = standalone.reader().load(path)
        assert len(caught) == 1
        with model:
            assert "ortune alone" in model.fallback
            np.testing.assert_array_equal(model(x=X)["y"], Y)

    def test_openvino_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        study = studies.study(tmp_path, backend=Openvino(threads=1))
        path = pack(study, tmp_path / "toy.ortune")
        for name in ("onnxruntime_ep_openvino", "openvino"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.warns(RuntimeWarning, match="OpenVINO plug-in is not installed") as caught:
            model = standalone.reader().load(path)
        assert len(caught) == 1
        with model:
            np.testing.assert_array_equal(model(x=X)["y"], Y)

    @pytest.mark.skipif(Openvino().missing() is not None, reason=f"{Openvino().missing()}")
    def test_openvino_is_there(self, tmp_path: Path) -> None:
        """In a process of its own: a process registers the provider once.

        The plug-in, or OpenVINO's own runtime, as ortune does.
        """
        study = studies.study(tmp_path, backend=Openvino(threads=1))
        path = pack(study, tmp_path / "toy.ortune")
        np.savez(tmp_path / "in.npz", x=X)
        script, out = reader(tmp_path / "reader.py"), tmp_path / "out.npz"
        run = [sys.executable, script, path, tmp_path / "in.npz", "-o", out]
        done = subprocess.run(list(map(str, run)), capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "RuntimeWarning" not in done.stderr, done.stderr
        assert "openvino(threads=1)" in done.stdout
        np.testing.assert_allclose(np.load(out)["y"], Y, atol=1e-5)

    def test_another_answer_than_the_golden_one(self, tmp_path: Path) -> None:
        study = studies.study(tmp_path)
        built = Path(study.root) / "artefacts/0123" / "toy.onnx"
        studies.write_model(built, MODEL.replace("{1,2,3,4}", "{9,2,3,4}"))
        path = pack(study, tmp_path / "toy.ortune")
        alone = standalone.reader()
        with pytest.raises(alone.BadModel, match="golden sample's answer is"):
            alone.load(path)

    def test_a_plain_model_is_refused(self, tmp_path: Path) -> None:
        alone = standalone.reader()
        path = studies.write_model(tmp_path / "toy.onnx", MODEL)
        with pytest.raises(alone.BadModel, match="is not a bundle"):
            alone.load(path)


class TestCommands:
    def test_the_verb_writes_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "reader.py"
        assert main(["reader", "-o", str(out)]) == 0
        assert "needs numpy and onnxruntime" in capsys.readouterr().out
        assert main(["reader", "-o", str(out)]) == 2
        assert main(["reader", "-o", str(out), "--force"]) == 0

    def test_a_process_of_its_own(self, bundle: Path, tmp_path: Path) -> None:
        reader(tmp_path / "reader.py")
        np.savez(tmp_path / "in.npz", x=X)
        out = tmp_path / "out.npz"
        command = [sys.executable, str(tmp_path / "reader.py"), str(bundle)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "input x: float32 ('N', 4)" in told
        run = [*command, str(tmp_path / "in.npz"), "-o", str(out)]
        subprocess.run(run, capture_output=True, check=True)
        np.testing.assert_array_equal(np.load(out)["y"], Y)
        np.savez(tmp_path / "in.npz", z=X)
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 2 and "no input 'z'" in done.stderr
