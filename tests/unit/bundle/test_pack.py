"""A bundle serves what was measured, and refuses to be anything else."""

import resource
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.unit import studies
from tests.unit.alone import run_alone
from tests.unit.bundle import several
from tests.unit.packaged import forge

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.cli.main import main
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings, OrtuneError
from ortune.core.study import Study
from ortune.core.trial import Status
from ortune.search.experiment.ledger import Ledger, write_header

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)
WRONG = studies.TUNED.replace("{1,2,3,4}", "{9,9,9,9}")


def test_it_holds_everything(bundle: Path, study: Study) -> None:
    with zipfile.ZipFile(bundle) as file:
        assert sorted(file.namelist()) == [
            "evidence.json",
            "fallback/toy.onnx",
            "golden/inputs.stream",
            "golden/outputs.stream",
            "manifest.json",
            "models/toy.onnx",
            "recipe.json",
            "sbom.cdx.json",
            "settings.json",
        ]
        stored = {i.filename for i in file.infolist() if i.compress_type == zipfile.ZIP_STORED}
        assert {"models/toy.onnx", "fallback/toy.onnx"} <= stored
    found = read_bundle(bundle)
    assert found.backend == Cpu(threads=1)
    assert found.recipe == study.best.plan.recipe
    assert [trial.part for trial in found.evidence.trials] == ["search", "final"]
    assert found.evidence.trials[-1] == study.best
    assert found.evidence.job == study.job
    assert found.manifest.machine == study.job.machine


def test_it_runs_with_its_settings_and_leaves_nothing(bundle: Path, temporary: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with load_engine(bundle) as engine:
            np.testing.assert_array_equal(engine(x=X)["y"], Y)
            assert engine.backend == Cpu(threads=1)
            assert engine.fallback == ""
            assert list(temporary.iterdir())
    assert not list(temporary.iterdir())


def test_a_dropped_engine_leaves_nothing(bundle: Path, temporary: Path) -> None:
    load_engine(bundle)
    assert not list(temporary.iterdir())


def test_an_engine_open_at_exit_leaves_nothing(bundle: Path, temporary: Path) -> None:
    code = (
        f"import tempfile; tempfile.tempdir = {str(temporary)!r}\n"
        "from ortune.bundle.engine.load import load_engine\n"
        f"engine = load_engine({str(bundle)!r})\n"
        f"import os; print(len(os.listdir({str(temporary)!r})))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == "1" and run.stderr == ""
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.99])
def test_a_truncated_bundle_is_found(bundle: Path, kept: float) -> None:
    content = bundle.read_bytes()
    bundle.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(BadModel, match="damaged"):
        load_engine(bundle)


def test_a_model_is_no_bundle(study: Study) -> None:
    with pytest.raises(BadModel, match=r"toy\.onnx is not a bundle"):
        read_bundle(Path(study.root) / "artefacts/0123/toy.onnx")


def test_another_answer_on_the_same_machine_is_an_error(study: Study, tmp_path: Path) -> None:
    built = Path(study.root) / "artefacts/0123/toy.onnx"
    studies.write_model(built, WRONG)
    with pytest.raises(BadModel, match="golden sample"):
        load_engine(pack(study, tmp_path / "wrong.ortune"))


def test_another_answer_on_another_machine_is_a_warning(study: Study, tmp_path: Path) -> None:
    studies.write_model(Path(study.root) / "artefacts/0123/toy.onnx", WRONG)
    job = replace(study.job, machine={**study.job.machine, "cpu": "An Older CPU"})
    path = pack(studies.changed(study, job=job), tmp_path / "moved.ortune")
    with pytest.warns(RuntimeWarning, match="cpu: An Older CPU then") as caught:
        load_engine(path).close()
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("settings", "reason"), [(b'{"is": "backends/quantum"}', "quantum"), (b"{", "Expecting")]
)
def test_an_unknown_backend_falls_back(bundle: Path, settings: bytes, reason: str) -> None:
    forge(bundle, {"settings.json": settings})
    with pytest.warns(RuntimeWarning, match=reason):
        engine = load_engine(bundle)
    np.testing.assert_array_equal(engine(x=X)["y"], Y)
    engine.close()


@pytest.mark.parametrize("name", ["settings.json", "recipe.json", "evidence.json"])
def test_a_text_that_is_none_is_refused(bundle: Path, name: str) -> None:
    with pytest.raises(BadModel, match=f"toy.ortune: '{name}' cannot be read"):
        read_bundle(forge(bundle, {name: b"{"}))


def test_another_trial(study: Study, tmp_path: Path) -> None:
    path = pack(study, tmp_path / "base.ortune", trial="ba5e")
    found = read_bundle(path)
    assert found.manifest.plans[0].models == found.manifest.fallback == {"": "fallback/toy.onnx"}
    with load_engine(path) as engine:
        np.testing.assert_array_equal(engine(x=X)["y"], Y)


def test_trials_that_cannot_be_packed(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "x.ortune"
    with pytest.raises(OrtuneError, match="no trial begins with 'zz'"):
        pack(study, path, trial="zz")
    with pytest.raises(OrtuneError, match="no trial begins with ''"):
        pack(study, path, trial="")
    with pytest.raises(OrtuneError, match="SIGSEGV"):
        pack(study, path, trial="dd44")
    twin = replace(study.trials[2], key="aa99" * 4, status=Status.SLOWER)
    with pytest.raises(OrtuneError, match="several trials"):
        pack(replace(study, trials=(*study.trials, twin)), path, trial="aa")
    assert not path.exists()


def test_an_existing_file_is_kept(bundle: Path, study: Study) -> None:
    before = bundle.read_bytes()
    with pytest.raises(OrtuneError, match="exists"):
        pack(study, bundle, trial="ba5e")
    assert bundle.read_bytes() == before
    pack(study, bundle, trial="ba5e", force=True)
    assert bundle.read_bytes() != before


@pytest.mark.parametrize("name", ["source/toy.onnx", "run/artefacts/0123/toy.onnx"])
def test_inputs_are_never_overwritten(study: Study, tmp_path: Path, name: str) -> None:
    before = (tmp_path / name).read_bytes()
    with pytest.raises(OrtuneError, match="never overwritten"):
        pack(study, tmp_path / name, force=True)
    assert (tmp_path / name).read_bytes() == before


def test_places_that_cannot_be_written(study: Study, tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match="is a folder"):
        pack(study, tmp_path)
    with pytest.raises(OrtuneError, match="there is no folder"):
        pack(study, tmp_path / "none" / "x.ortune")


def test_a_full_disk_is_an_error_and_leaves_nothing(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files stands in for the disk: the kernel refuses the write."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut it
    target = tmp_path / "out" / "x.ortune"
    target.parent.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        with pytest.raises(OrtuneError, match="cannot write") as caught:
            pack(study, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "free some space" in caught.value.fix
    assert not list(target.parent.iterdir())


def test_a_changed_original_is_refused(study: Study, tmp_path: Path) -> None:
    studies.write_model(tmp_path / "source" / "toy.onnx", WRONG)
    with pytest.raises(OrtuneError, match="changed since"):
        pack(study, tmp_path / "x.ortune")


def test_a_missing_part_of_the_run_is_named(study: Study, tmp_path: Path) -> None:
    (Path(study.root) / "artefacts/0123/toy.onnx").unlink()
    with pytest.raises(OrtuneError, match=r"built model in .*0123' is gone"):
        pack(study, tmp_path / "x.ortune")
    (tmp_path / "source" / "toy.onnx").unlink()
    with pytest.raises(OrtuneError, match="the original"):
        pack(study, tmp_path / "x.ortune")


def external(path: Path, text: str) -> Path:
    """Write a model whose weights lie beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    proto = onnx.parser.parse_model(text)
    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(
        proto,
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


def test_external_data_travels(study: Study, tmp_path: Path) -> None:
    source = external(tmp_path / "source" / "toy.onnx", studies.MODEL)
    external(Path(study.root) / "artefacts/0123/toy.onnx", studies.TUNED)
    assert (source.parent / "weights.bin").stat().st_size == 16
    path = pack(studies.changed(study, job=studies.job(source)), tmp_path / "x.ortune")
    assert read_bundle(path).manifest.plans[0].models == {"": "models/toy/toy.onnx"}
    for file in (source.parent, Path(study.root) / "artefacts"):
        (file / "weights.bin").unlink(missing_ok=True)
    with load_engine(path) as engine:
        np.testing.assert_array_equal(engine(x=X)["y"], Y)


def test_several_models(study: Study, tmp_path: Path) -> None:
    names = ("encoder", "decoder")
    sources = [studies.write_model(tmp_path / f"{name}.onnx", studies.MODEL) for name in names]
    made = studies.changed(
        study,
        job=studies.job(*sources, names=names),
        models=dict(zip(names, map(str, sources), strict=True)),
    )
    built = Path(study.root) / "artefacts/0123"
    tuned = studies.write_model(built / "decoder.onnx", studies.TUNED)
    studies.write_golden(made, made.best, sources[0], "encoder")
    studies.write_golden(made, made.best, tuned, "decoder")
    path = pack(made, tmp_path / "x.ortune")
    models = read_bundle(path).manifest.plans[0].models
    assert models == {"encoder": "fallback/encoder.onnx", "decoder": "models/decoder.onnx"}
    with load_engine(path) as engine:
        assert engine.models == names
        np.testing.assert_array_equal(engine["decoder"](x=X)["y"], Y)
        np.testing.assert_array_equal(engine["encoder"](x=X)["y"], Y)
        with pytest.raises(BadSettings, match="2 models"):
            engine(x=X)


def test_what_was_measured_once_is_packed_only_by_name_and_says_so(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(study.root)
    write_header(root, study.header)
    ledger = Ledger(root)
    for trial in study.trials[:-1]:
        ledger.append(trial)
    cut, named = tmp_path / "cut.ortune", tmp_path / "named.ortune"
    assert main(["pack", str(root), "-o", str(cut)]) == 0
    assert "not confirmed" not in capsys.readouterr().out
    assert read_bundle(cut).manifest.plans[0].models == read_bundle(cut).manifest.fallback, (
        "the original"
    )
    asked = ["pack", str(root), "-o", str(named), "--plan", "aa11"]
    for words in (asked, [*asked, "--force"]):
        assert main(words) == 2 and not named.exists(), "force is about overwriting alone"
        what, fix = capsys.readouterr().err.splitlines()
        assert "trial aa11aa11 (clean @ cpu(threads=1)) is not confirmed" in what
        assert "--unconfirmed" in fix
    assert main([*asked, "--unconfirmed"]) == 0
    assert "not confirmed" in capsys.readouterr().out
    assert read_bundle(named).manifest.plans[0].models != read_bundle(named).manifest.fallback
    ledger.append(study.trials[-1])
    again = tmp_path / "again.ortune"
    assert main(["pack", str(root), "-o", str(again), "--plan", "aa11"]) == 0
    assert "not confirmed" not in capsys.readouterr().out


# `pip install --no-deps` of the wheel beside numpy and onnxruntime opens bundles as packed.


CODE = """
import numpy as np, ortune
arrays = dict(np.load(sys.argv[2]))
with ortune.load(sys.argv[1]) as engine:
    np.savez(sys.argv[3], **engine(**arrays))
    print(engine.plan and engine.plan.plan)
kept = sys.stdlib_module_names | {"numpy", "onnxruntime", "ortune", "__main__"}
print(sorted({name.partition(".")[0] for name in sys.modules} - kept))
"""


def opened(folder: Path, backend: Backend | None = None, bundle: Path | None = None) -> list[str]:
    """Open a bundle of the toy alone, compare its answer, return what it said."""
    alone = folder / "alone"
    alone.mkdir()
    np.savez(alone / "in.npz", x=X)
    path = bundle or pack(studies.study(folder, backend=backend), folder / "toy.ortune")
    done = run_alone(alone, CODE, path, alone / "in.npz", alone / "out.npz")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(alone / "out.npz")["y"], Y)
    plan, others = done.stdout.splitlines()
    assert others == "[]"
    return [plan, *done.stderr.splitlines()]


def test_it_runs_as_it_was_measured(tmp_path: Path) -> None:
    many = Cpu(threads=2, level="basic", spin=False, memory_pattern=False, parallel=True)
    assert opened(tmp_path, many) == [
        "clean @ cpu(threads=2, level=basic, spin=false, parallel=true, memory_pattern=false)"
    ]


@pytest.mark.parametrize("backend", [Openvino(threads=1), None])
def test_a_plan_that_cannot_run_gives_way_with_one_warning(
    tmp_path: Path, backend: Backend | None
) -> None:
    study = studies.study(tmp_path, backend=backend) if backend else several.study(tmp_path)
    path = pack(study, tmp_path / "x.ortune", per_backend=backend is None)
    plan, *said = opened(tmp_path, bundle=path)
    assert sum("RuntimeWarning" in line for line in said) == 1, said
    assert plan == ("None" if backend else "clean @ cpu(threads=1)")


def test_a_bundle_of_an_earlier_release_may_bring_a_program_which_nothing_runs(
    tmp_path: Path,
) -> None:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    forge(bundle, {"reader.py": b"raise SystemExit(7)\n"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_engine(bundle).close()
