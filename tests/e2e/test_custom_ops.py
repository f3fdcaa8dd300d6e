"""Custom operators from the C++ example: every verb, the worker, the bundle and the engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit import studies
from tests.unit.packaged import forge, members_of

import ortune as ot
from ortune.backends.cpu import Cpu
from ortune.bundle.engine.manifest import SETTINGS
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.cli.main import main
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.core.plugins import user_file
from ortune.core.trial import Plan

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_op_cpp"
RULE = f"{EXAMPLE}/swish_rules.py:fuse_scale_swish"

SLOW = pytest.mark.long


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("no C++ compiler: apt-get install g++ make")
    folder = tmp_path_factory.mktemp("library")
    subprocess.run(["make", "-C", EXAMPLE, f"OUT={folder}"], check=True, capture_output=True)
    return folder / "libfused_swish.so"


@pytest.fixture(scope="module")
def fused(library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and what the example's rule makes of it."""
    folder = tmp_path_factory.mktemp("fused")
    source, out = folder / "scaled.onnx", folder / "fused.onnx"
    onnx.save(user_file.run_file(EXAMPLE / "make_models.py").model(True, 2, 32, blocks=2), source)
    done = main(["apply", str(source), "simplify", RULE, *ops(library), "-o", str(out)])
    assert done == 0
    return source, out


def ops(library: Path | str) -> list[str]:
    return ["--custom-ops", str(library)]


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def draw(seed: int, rows: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 32)).astype(np.float32)


def answer(source: Path, x: np.ndarray) -> np.ndarray:
    """What the model that was fused says."""
    with ot.load(source) as engine:
        (found,) = engine(x=x).values()
        return found


def test_the_rule_fuses_the_chain(fused: tuple[Path, Path]) -> None:
    made = onnx.load(fused[1])
    assert [n.op_type for n in made.graph.node] == ["FusedScaleSwish", "MatMul", "FusedScaleSwish"]
    assert {one.domain: one.version for one in made.opset_import}["example.ops"] == 1
    assert made.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 32


def test_without_the_library_the_step_is_rolled_back(
    fused: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", str(fused[0]), RULE, "-o", str(tmp_path / "o.onnx"), "--json"]) == 1
    (edit,) = told(capsys)["edits"]
    assert not edit["kept"] and "not a registered function" in edit["note"]


def test_the_engine_runs_it(fused: tuple[Path, Path], library: Path) -> None:
    x = draw(0)
    wanted = answer(fused[0], x)
    with ot.load(fused[1], custom_ops=str(library)) as engine:
        np.testing.assert_allclose(engine(x=x)["b1_y"], wanted, rtol=1e-5, atol=1e-5)
    with ot.load(fused[1], on=f'cpu(threads=1, custom_ops=["{library}"])') as engine:
        np.testing.assert_allclose(engine(x=x)["b1_y"], wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(BadModel, match="not a registered function") as error:
        ot.load(fused[1])
    assert "--custom-ops" in error.value.fix
    with pytest.raises(BadSettings, match="brings no libraries"):
        ot.load(fused[1], custom_ops=True)


def test_edge_values(library: Path, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "example.ops": 1]>
    g (float[n,c] x) => (float[n,c] y, float[n,c] z) <float[1] w = {2}, float[1] b = {1}> {
      y = example.ops.FusedSwish(x)
      z = example.ops.FusedScaleSwish(x, w, b)
    }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    hard = np.array([[0, -1, 1, -87, 87, -1e4, 1e4, np.inf]], np.float32)
    many = np.linspace(-30, 30, 50_001, dtype=np.float32)[None]
    with ot.load(path, on="cpu(threads=2)", custom_ops=[str(library)]) as engine:
        for x in (hard, many, np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32)):
            found = engine(x=x)
            for name, a in (("y", x.astype(np.float64)), ("z", 2 * x.astype(np.float64) + 1)):
                with np.errstate(over="ignore"):
                    wanted = a / (1 + np.exp(-a))
                np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
        assert np.isnan(engine(x=np.array([[np.nan]], np.float32))["y"]).all()


@pytest.mark.parametrize(
    "verb",
    [
        "verify SOURCE FUSED",
        "run FUSED DATA",
        "apply FUSED int8-static --data DATA -o OUT",
        pytest.param("bench SOURCE FUSED --time 0.2 --sets 1", marks=SLOW),
        pytest.param("profile FUSED --time 0.2 --no-ceilings --try", marks=SLOW),
        pytest.param("tune FUSED --time 3s", marks=SLOW),
        pytest.param("timeline FUSED --time 0.5 --starts 1 --step int8-dynamic", marks=SLOW),
        pytest.param("calibrate FUSED --data DATA", marks=SLOW),
        pytest.param("calibrate FUSED --data DATA --compare", marks=SLOW),
        pytest.param("verify SOURCE FUSED --simulate avx2", marks=SLOW),
        pytest.param("convert FUSED OUT --precision int8 --data DATA", marks=SLOW),
        pytest.param("convert FUSED OUT --precision fp16 --data DATA", marks=SLOW),
        pytest.param("convert FUSED OUT --opt-level basic", marks=SLOW),
    ],
)
def test_every_verb_takes_the_library(
    fused: tuple[Path, Path],
    library: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    data, out = tmp_path / "data", tmp_path / "out.onnx"
    samples(data)
    words = {"SOURCE": fused[0], "FUSED": fused[1], "DATA": data, "OUT": out}
    line = [str(words.get(word, word)) for word in verb.split()]
    assert main([*line, *ops(library), "--json"]) == 0, capsys.readouterr().err
    found = told(capsys)
    if verb.startswith("bench"):
        assert not any(row["error"] for row in found["rows"])
    if "OUT" in verb:
        made = onnx.load(out)
        assert [n.domain for n in made.graph.node].count("example.ops") == 2


def samples(folder: Path) -> None:
    folder.mkdir()
    for index in range(8):
        np.savez(folder / f"{index}.npz", x=draw(index))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    """Libraries that cannot be used, each in its own way."""
    folder = tmp_path_factory.mktemp("broken")
    arm = bytearray(library.read_bytes())
    arm[18:20] = (183).to_bytes(2, "little")
    (folder / "arm.so").write_bytes(arm)
    (folder / "text.so").write_text("no library")
    (folder / "none.py").write_text("x = 1\n")
    (folder / "raises.py").write_text("raise ValueError('no')\n")
    (folder / "gives.py").write_text("def get_library_path():\n    return '/no/such.so'\n")
    code = 'extern "C" int RegisterCustomOps() { int *p = nullptr; return *p; }'
    for name, text in (("crash", code), ("empty", "int x;")):
        source = folder / f"{name}.cc"
        source.write_text(text)
        line = ["g++", "-shared", "-fPIC", "-o", folder / f"{name}.so", source]
        subprocess.run(line, check=True)
    return folder


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("missing.so", "no library of custom operators", "build it first"),
        ("arm.so", "was built for aarch64", "build it on this machine"),
        ("text.so", "does not load as a library", "exports RegisterCustomOps"),
        pytest.param(
            *("empty.so", "does not load as a library", "exports RegisterCustomOps"), marks=SLOW
        ),
        ("crash.so", "is killed by SIGSEGV", "the library"),
        pytest.param(*("none.py", "gives no library", "define get_library_path()"), marks=SLOW),
        pytest.param(
            *("raises.py", "raises.py line 1: ValueError: no", "correct the file"), marks=SLOW
        ),
        pytest.param(
            *("gives.py", "no library of custom operators '/no/such.so'", "build it first"),
            marks=SLOW,
        ),
        pytest.param(
            *(
                "no-such-package",
                "No module named 'no_such_package'",
                "pip install no-such-package",
            ),
            marks=SLOW,
        ),
    ],
)
def test_a_library_that_cannot_be_used_gives_two_lines(
    fused: tuple[Path, Path],
    broken: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    what: str,
    fix: str,
) -> None:
    text = str(broken / name) if "." in name else name
    if name == "arm.so" and sys.platform != "linux":
        pytest.skip("reads ELF")
    assert main(["verify", str(fused[0]), str(fused[1]), "--custom-ops", text]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, said
    assert what in said[0] and fix in said[1]


@pytest.mark.parametrize("on", ["openvino", "torch", "reference"])
def test_other_runtimes_say_that_they_take_none(
    fused: tuple[Path, Path], library: Path, capsys: pytest.CaptureFixture[str], on: str
) -> None:
    assert main(["bench", str(fused[1]), "--on", on, *ops(library)]) == 2
    assert f"backend '{on}' takes no custom operators" in capsys.readouterr().err


@pytest.mark.long
def test_a_search_uses_them_and_packs_them(
    fused: tuple[Path, Path], library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, root, bundle = tmp_path / "samples", tmp_path / "run", tmp_path / "m.ortune"
    samples(data)
    line = ["optimize", str(fused[1]), "--data", str(data), "--on", "cpu(threads=1)"]
    assert main([*line, *ops(library), "--time", "3s", "-o", str(root), "--quiet"]) == 0
    assert str(library) in (root / "ortune.toml").read_text()
    assert main(["pack", str(root), "-o", str(bundle)]) == 0
    x = draw(3)
    with pytest.raises(BadSettings, match="runs code of its own"):
        ot.load(bundle)
    with ot.load(bundle, custom_ops=True) as engine:
        found, wanted = engine(x=x)["b1_y"], answer(fused[0], x)
        assert np.linalg.norm(found - wanted) < 0.1 * np.linalg.norm(wanted)
        assert not engine.fallback
    capsys.readouterr()


def test_a_bundle_asks_before_it_runs_its_library(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = Cpu(threads=1, custom_ops=(str(library),))
    bundle = pack(studies.study(tmp_path, backend=backend), tmp_path / "toy.ortune")
    with zipfile.ZipFile(bundle) as held:
        assert held.read("custom_ops/libfused_swish.so") == library.read_bytes()
        assert str(library) not in held.read(SETTINGS).decode()
    assert read_bundle(bundle).manifest.custom_ops == ("custom_ops/libfused_swish.so",)
    with pytest.raises(BadSettings, match=r"libfused_swish\.so \(sha256 [0-9a-f]{16}\)"):
        ot.load(bundle)
    with pytest.raises(BadSettings, match="brings its own libraries"):
        ot.load(bundle, custom_ops=str(library))
    x = np.array([[-5, 0, 1, 2]], np.float32)
    with ot.load(bundle, custom_ops=True) as engine:
        np.testing.assert_array_equal(engine(x=x)["y"], [[0, 2, 4, 6]])
        assert not engine.fallback
        assert Path(engine.backend.custom_ops[0]).read_bytes() == library.read_bytes()
    np.savez(tmp_path / "x.npz", x=x)
    line = ["run", str(bundle), str(tmp_path / "x.npz")]
    assert main(line) == 2
    assert "--allow-custom-ops" in capsys.readouterr().err
    assert main([*line, "--allow-custom-ops"]) == 0


def test_the_original_runs_where_the_library_does_not(tmp_path: Path) -> None:
    text = tmp_path / "libother.so"
    text.write_bytes(Path(sys.executable).resolve().read_bytes()[:64])
    backend = Cpu(threads=1, custom_ops=(str(text),))
    bundle = pack(studies.study(tmp_path, backend=backend), tmp_path / "toy.ortune")
    with pytest.warns(RuntimeWarning, match="does not load as a library"):
        engine = ot.load(bundle, custom_ops=True)
    with engine:
        assert engine.fallback and engine.backend == Cpu()


def test_settings_that_name_other_code_are_not_run(tmp_path: Path) -> None:
    """Who changes the settings and their digest still cannot have code run that nobody allowed."""
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    study = studies.study(tmp_path, backend=Cpu(threads=1))
    bundle = pack(study, tmp_path / "toy.ortune")
    settings = json.loads(members_of(bundle)[SETTINGS]) | {"custom_ops": [str(evil)]}
    forge(bundle, {SETTINGS: json.dumps(settings).encode()})
    with pytest.raises(BadModel, match="its manifest does not"):
        ot.load(bundle)
    with pytest.raises(BadModel, match="its manifest does not"):
        ot.load(bundle, custom_ops=True)
    assert not (tmp_path / "ran").exists()


def test_a_library_that_is_gone_is_not_packed(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    gone = Cpu(custom_ops=(str(tmp_path / "gone.so"),))
    trials = tuple(replace(t, plan=Plan(t.plan.recipe, gone)) for t in study.trials)
    with pytest.raises(OrtuneError, match=r"'.*gone\.so' is gone"):
        pack(replace(study, trials=trials), tmp_path / "toy.ortune")
