"""A bundle of several plans: what it holds, which plan runs, and what `on` picks."""

import json
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ortune_toys.backends.precompiled import Precompiled
from ortune_toys.backends.scripted import Scripted
from tests.unit import studies
from tests.unit.bundle import several
from tests.unit.bundle.several import CPU, OTHER, TOY
from tests.unit.packaged import forge, members_of

from ortune.backends.cpu import Cpu
from ortune.bundle.engine import archive
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.cli.main import main
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel, BadSettings, OrtuneError
from ortune.core.study import Study
from ortune.core.trial import Status

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return several.study(tmp_path)


@pytest.fixture
def bundle(study: Study, tmp_path: Path) -> Path:
    return pack(study, tmp_path / "toy.ortune", with_=["aa11", "ff66"])


def absent(monkeypatch: pytest.MonkeyPatch, *kinds: type[Backend]) -> None:
    for kind in kinds:
        monkeypatch.setattr(kind, "missing", lambda self: f"install {self.name()}")


class TestContent:
    def test_what_plans_share_is_there_once(self, bundle: Path) -> None:
        with zipfile.ZipFile(bundle) as file:
            assert sorted(file.namelist()) == [
                "evidence.json",
                "fallback/toy.onnx",
                "golden/inputs.stream",
                "golden/outputs.stream",
                "manifest.json",
                "models/toy.onnx",
                "plans/1/golden/outputs.stream",
                "plans/1/recipe.json",
                "plans/1/settings.json",
                "plans/2/golden/outputs.stream",
                "plans/2/models/toy.onnx",
                "plans/2/recipe.json",
                "plans/2/settings.json",
                "recipe.json",
                "sbom.cdx.json",
                "settings.json",
            ]

    def test_every_plan_has_settings_evidence_and_ratio(self, bundle: Path, study: Study) -> None:
        found = read_bundle(bundle)
        assert [plan.packed.key for plan in found.plans] == [TOY, CPU, OTHER]
        assert [plan.backend for plan in found.plans] == [
            Scripted(slow=0.9),
            Cpu(threads=1),
            Cpu(level="basic"),
        ]
        assert found.backend == Scripted(slow=0.9)
        ratios = np.array([plan.packed.ratio for plan in found.plans])
        assert ratios == pytest.approx(
            np.array([[0.4, 0.39, 0.41], [0.52, 0.51, 0.535], [0.8, 0.79, 0.81]])
        )
        assert {trial.key for trial in found.evidence.trials} == {TOY, CPU, OTHER}
        assert all(plan.recipe == study.best.plan.recipe for plan in found.plans)
        first, second, third = found.manifest.plans
        assert first.models == second.models != third.models
        assert {plan.golden[""].inputs for plan in found.manifest.plans} == {
            "golden/inputs.stream"
        }

    def test_the_winner_comes_first_and_what_is_named_last_may_come_second(
        self, study: Study, tmp_path: Path
    ) -> None:
        path = pack(study, tmp_path / "x.ortune", trial="ff66", with_="aa11, ff66 ,ee55")
        assert [plan.key for plan in read_bundle(path).manifest.plans] == [TOY, CPU, OTHER]

    def test_the_best_of_each_backend(self, study: Study, tmp_path: Path) -> None:
        path = pack(study, tmp_path / "x.ortune", per_backend=True)
        assert [plan.key for plan in read_bundle(path).manifest.plans] == [TOY, CPU]

    def test_the_original_stands_for_a_backend_that_gained_nothing(
        self, study: Study, tmp_path: Path
    ) -> None:
        alone = replace(study, trials=tuple(t for t in study.trials if t.key not in (CPU, OTHER)))
        path = pack(alone, tmp_path / "x.ortune", per_backend=True)
        first, second = read_bundle(path).manifest.plans
        assert (first.key, second.key) == (TOY, "ba5e" * 4)
        assert second.models == {"": "fallback/toy.onnx"} and second.ratio == (1.0, 1.0, 1.0)

    def test_what_is_not_confirmed_comes_last_and_only_when_told(
        self, study: Study, tmp_path: Path
    ) -> None:
        path = tmp_path / "x.ortune"
        slower = replace(study.trials[2], status=Status.OK, key="bb22" * 4, artefact=None)
        doubted = replace(study, trials=(*study.trials[:2], slower, *study.trials[3:]))
        studies.write_golden(doubted, slower, Path(study.models[""]))
        with pytest.raises(OrtuneError, match=r"bb22bb22 .* is not confirmed"):
            pack(doubted, path, with_="bb22")
        pack(doubted, path, trial="bb22", with_="aa11", unconfirmed=True)
        first, second = read_bundle(path).manifest.plans
        assert (first.key, second.key, second.ratio) == (CPU, "bb22" * 4, None)

    def test_more_than_a_bundle_may_hold(self, study: Study, tmp_path: Path) -> None:
        for place in range(17):
            study = several.with_plan(study, f"{place:02}ab" * 4, Cpu(threads=1), 0.7)
        keys = [f"{place:02}ab" for place in range(17)]
        with pytest.raises(BadSettings, match="18 plans are more than the 16"):
            pack(study, tmp_path / "x.ortune", with_=keys)

    def test_the_same_trials_pack_to_the_same_bytes(self, study: Study, tmp_path: Path) -> None:
        one, two = (
            pack(study, tmp_path / name, per_backend=True, licence="Apache-2.0")
            for name in ("1.ortune", "2.ortune")
        )
        assert one.read_bytes() == two.read_bytes()

    def test_licence_and_provenance(self, study: Study, tmp_path: Path) -> None:
        manifest = read_bundle(
            pack(study, tmp_path / "x.ortune", licence="MIT OR Apache-2.0")
        ).manifest
        assert manifest.licence == "MIT OR Apache-2.0"
        assert manifest.provenance["original"] == study.job.model_digest
        assert manifest.provenance["data"] == study.job.data_digest
        assert manifest.provenance["measured"] == "evidence.json"
        assert manifest.provenance["built by"].startswith("ortune ")
        for wrong in ("a" * 300, "MIT\n", "\x1b[31m", "<b>"):
            with pytest.raises(BadSettings, match="is not SPDX"):
                pack(study, tmp_path / "y.ortune", licence=wrong)

    def test_unpacking_leaves_other_plans_alone(self, bundle: Path, tmp_path: Path) -> None:
        with archive.open_bundle(bundle) as (file, manifest):
            plan = manifest.plans[2]
            archive.unpack_members(
                file, manifest, tmp_path / "out", {plan.settings, *plan.models.values()}
            )
        found = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")}
        assert found == {"plans/2/settings.json", "plans/2/models/toy.onnx"}


class TestLoad:
    def test_the_first_runs_as_measured(self, bundle: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with load_engine(bundle) as engine:
                np.testing.assert_array_equal(engine(x=X)["y"], Y)
        assert engine.backend == Scripted(slow=0.9)
        assert engine.plan is not None and engine.plan.key == TOY
        assert engine.fallback == ""

    def test_the_next_runs_where_the_first_does_not(
        self, bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        absent(monkeypatch, Scripted)
        said = r"fastest plan cannot run on 'scripted\(slow=0.9\)' here \(fix: install scripted\)"
        with pytest.warns(RuntimeWarning, match=said) as caught, load_engine(bundle) as engine:
            np.testing.assert_array_equal(engine(x=X)["y"], Y)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert "its plan for 'cpu(threads=1)' runs instead" in str(caught[0].message)
        assert engine.backend == Cpu(threads=1)
        assert engine.plan is not None and engine.plan.key == CPU
        assert "install scripted" in engine.fallback

    def test_a_plan_that_does_not_open_is_passed_over(
        self, bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(self: object, path: Path, **_: object) -> None:
            raise RuntimeError("libtoy.so is missing")

        monkeypatch.setattr(Scripted, "open", broken)
        with (
            pytest.warns(RuntimeWarning, match=r"libtoy\.so") as caught,
            load_engine(bundle) as engine,
        ):
            assert engine.plan is not None and engine.plan.key == CPU
        assert len(caught) == 1

    def test_the_original_runs_where_none_does(
        self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        more = several.with_plan(study, "1234" * 4, Scripted(slow=0.7), 0.6)
        path = pack(more, tmp_path / "x.ortune", with_="1234")
        absent(monkeypatch, Scripted)
        said = "none of its 2 plans can run here .*slow=0.9.*slow=0.7.*the original runs"
        with pytest.warns(RuntimeWarning, match=said) as caught, load_engine(path) as engine:
            np.testing.assert_array_equal(engine(x=X)["y"], Y)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert engine.plan is None and engine.backend == Cpu() and engine.fallback

    @pytest.mark.parametrize(
        ("on", "key"),
        [
            ("cpu", CPU),
            ("scripted", TOY),
            ("scripted(slow=0.9)", TOY),
            ("cpu(level=basic)", OTHER),
            (Cpu(level="basic"), OTHER),
            (Cpu(), CPU),
        ],
    )
    def test_on_picks_a_plan(self, bundle: Path, on: str | Backend, key: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with load_engine(bundle, on=on) as engine:
                np.testing.assert_array_equal(engine(x=X)["y"], Y)
        assert engine.plan is not None and engine.plan.key == key

    @pytest.mark.parametrize("packed", ["several", "one"])
    def test_where_nothing_was_measured_the_model_runs_with_a_warning(
        self, bundle: Path, study: Study, tmp_path: Path, packed: str
    ) -> None:
        path = bundle if packed == "several" else pack(study, tmp_path / "one.ortune")
        said = r"none of its plans was measured on 'cpu\(threads=1, level=extended\)'"
        on = "cpu(threads=1, level=extended)"
        with (
            pytest.warns(RuntimeWarning, match=said) as caught,
            load_engine(path, on=on) as engine,
        ):
            np.testing.assert_array_equal(engine(x=X)["y"], Y)
        assert len(caught) == 1 and caught[0].filename == __file__
        assert "the model of 'clean @ scripted(slow=0.9)' runs there" in str(caught[0].message)
        assert engine.plan is None and engine.fallback
        assert engine.backend == Cpu(threads=1, level="extended")

    def test_a_model_that_answers_otherwise_there_leaves_it_to_the_original(
        self, study: Study, tmp_path: Path
    ) -> None:
        wrong = studies.TUNED.replace("{1,2,3,4}", "{9,9,9,9}")
        studies.write_model(Path(study.root) / "artefacts/0123/toy.onnx", wrong)
        path = pack(study, tmp_path / "x.ortune")
        with (
            pytest.warns(RuntimeWarning, match="the original runs there") as caught,
            load_engine(path, on="cpu(threads=1)") as engine,
        ):
            np.testing.assert_array_equal(engine(x=X)["y"], Y)
        assert len(caught) == 1

    def test_a_plan_that_was_asked_for_is_not_replaced(
        self, bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        absent(monkeypatch, Scripted)
        with pytest.raises(BackendMissing, match=r"its plan for 'scripted.*install scripted") as e:
            load_engine(bundle, on="scripted")
        assert "leave on=" in e.value.fix

    def test_another_answer_of_a_later_plan_is_an_error_too(
        self, study: Study, tmp_path: Path
    ) -> None:
        wrong = studies.TUNED.replace("{1,2,3,4}", "{9,9,9,9}")
        studies.write_model(Path(study.root) / "artefacts/0456/toy.onnx", wrong)
        path = pack(study, tmp_path / "x.ortune", with_="ff66")
        load_engine(path).close()
        with pytest.raises(BadModel, match="golden sample"):
            load_engine(path, on="cpu")


class TestCommand:
    @pytest.fixture
    def run(self, study: Study) -> str:
        return str(studies.write_run(study))

    def test_it_names_the_plans(
        self, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = [
            "pack",
            run,
            "-o",
            str(tmp_path / "x.ortune"),
            "--plan",
            "winner,ff66",
            "--per-backend",
        ]
        assert main([*words, "--licence", "MIT", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [plan["key"] for plan in told["plans"]] == [TOY, CPU, OTHER]
        assert all(plan["confirmed"] for plan in told["plans"])
        assert told["signature"] is None
        assert main([*words, "--force"]) == 0
        assert "then:   optimized graph · 1 thread (1.92x" in capsys.readouterr().out

    def test_run_takes_a_plan_by_its_backend(
        self, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        np.savez(tmp_path / "x.npz", x=X)
        words = ["run", str(bundle), str(tmp_path / "x.npz"), "--json"]
        for more, plan in (((), "scripted"), (("--on", "cpu"), "cpu")):
            assert main([*words, *more]) == 0
            told = json.loads(capsys.readouterr().out)
            assert told["plan"].startswith(f"clean @ {plan}(") and not told["warnings"]


# Compiled models in a bundle: opened where provider, versions and device are the same.


def packed(folder: Path, harm: str = "") -> Path:
    """Pack a run whose winner's provider compiles; what is harmed is so after it was checked."""
    study = studies.study(folder, backend=Precompiled())
    path = pack(study, folder / "toy.ortune", compiled=True)
    if harm:
        settings = json.loads(members_of(path)["settings.json"]) | {"harm": harm}
        forge(path, {"settings.json": json.dumps(settings).encode()})
    return path


def said(path: Path, **how: bool) -> tuple[Engine, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = load_engine(path, **how)
    np.testing.assert_array_equal(engine(x=X)["y"], Y)
    return engine, [str(one.message) for one in caught]


def test_what_is_in_it(tmp_path: Path) -> None:
    path = packed(tmp_path)
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        told = json.loads(file.read("compiled.json"))
    assert "compiled/toy.onnx" in names and "models/toy.onnx" in names
    assert told == [
        {
            "plan": 0,
            "models": {"": "compiled/toy.onnx"},
            "made_for": {"provider": "ToyExecutionProvider", "device": "toy 1"},
        }
    ]
    assert read_bundle(path).backend == Precompiled()


def test_it_is_opened_where_all_is_the_same(tmp_path: Path) -> None:
    engine, warned = said(packed(tmp_path))
    assert engine.compiled and not engine.fallback and not warned
    assert engine.plan is not None and engine.backend == Precompiled()


def test_elsewhere_the_plain_model_runs_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path)
    monkeypatch.setenv("TOY_DEVICE", "toy 2")
    engine, warned = said(path)
    assert not engine.compiled and engine.backend == Precompiled() and not engine.fallback
    why = "(device: toy 1 then, toy 2 now); it compiles the plain model"
    assert warned == [f"toy.ortune: what 'precompiled' compiled does not run here {why}"]
    monkeypatch.setenv("TOY_DEVICE", "none")
    _, warned = said(path)
    assert len(warned) == 1 and "the toy has no device; fix: plug it in" in warned[0]


@pytest.mark.parametrize(
    ("harm", "why"), [("closed", "error 7"), ("wrong", "differ from the packed ones")]
)
def test_what_does_not_open_or_answers_otherwise_is_left_alone(
    tmp_path: Path, harm: str, why: str
) -> None:
    path = packed(tmp_path, harm)
    if harm == "wrong":
        other = tmp_path / "wrong.onnx"
        Precompiled(harm=harm).compile(tmp_path / "run/artefacts/0123/toy.onnx", other)
        wrong = other.read_bytes()
        forge(path, {"compiled/toy.onnx": wrong})
    engine, warned = said(path)
    assert not engine.compiled and len(warned) == 1 and why in warned[0]


def test_it_can_be_left_out_and_fewer_threads_leave_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, warned = said(packed(tmp_path), compiled=False)
    assert not engine.compiled and not warned
    study = studies.study(tmp_path / "many", backend=Precompiled(threads=2))
    path = pack(study, tmp_path / "many.ortune", compiled=True)
    monkeypatch.setattr("ortune.bundle.engine.consent.effective_cpus", lambda: 1)
    engine, warned = said(path)
    assert not engine.compiled and "lowered to this machine" in warned[0]


def test_bytes_outside_of_the_bundle_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "outside.onnx"
    path = packed(tmp_path)
    Precompiled(harm="outside").compile(tmp_path / "run/artefacts/0123/toy.onnx", other)
    outside, plain = other.read_bytes(), (tmp_path / "run/artefacts/0123/toy.onnx").read_bytes()
    for content, why in ((outside, "a file outside itself"), (plain, "no compiled model")):
        forge(path, {"compiled/toy.onnx": content})
        with pytest.raises(BadModel, match=why):
            load_engine(path)


@pytest.mark.parametrize(
    "told",
    [
        b"{}",
        b"[",
        b'[{"plan": 7, "models": {"": "compiled/toy.onnx"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"other": "compiled/toy.onnx"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"": "../toy.onnx"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"": "settings.json"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"": "compiled/toy.onnx"}, "made_for": 3}]',
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, told: bytes) -> None:
    path = packed(tmp_path)
    forge(path, {"compiled.json": told})
    with pytest.raises(BadModel, match=r"compiled\.json"):
        load_engine(path)


@pytest.mark.parametrize("harm", ["wrong", "closed"])
def test_what_is_wrong_is_not_packed(tmp_path: Path, harm: str) -> None:
    study = studies.study(tmp_path, backend=Precompiled(harm=harm))
    with pytest.raises(BadModel, match=r"toy\.onnx"):
        pack(study, tmp_path / "toy.ortune", compiled=True)
    assert not (tmp_path / "toy.ortune").exists()


def test_only_plans_that_can_are_compiled(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cpu compiles no model ahead of time"):
        pack(studies.study(tmp_path / "cpu"), tmp_path / "cpu.ortune", compiled=True)
    study = several.with_plan(studies.study(tmp_path / "two"), "ab12" * 4, Precompiled(), 0.9)
    path = pack(study, tmp_path / "two.ortune", with_="ab12", compiled=True)
    with zipfile.ZipFile(path) as file:
        assert "plans/1/compiled/toy.onnx" in file.namelist()
        assert "compiled/toy.onnx" not in file.namelist()
    engine = load_engine(path, on="precompiled")
    assert engine.compiled and load_engine(path).backend == Cpu(threads=1)


def test_the_command_line_packs_it(tmp_path: Path) -> None:
    root = studies.write_run(studies.study(tmp_path, backend=Precompiled()))
    words = ["pack", str(root), "-o", str(tmp_path / "cli.ortune"), "--compiled"]
    assert main(words) == 0
    assert load_engine(tmp_path / "cli.ortune").compiled
    assert main([*words, "--for", "python"]) != 0
