"""A package holds the best plan that its target can run, and is judged before it appears."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.bundle.pack import CONTENTS, build_candidates, pack, package
from ortune.bundle.target import Replay, Source, Target, make_word, unpack_temporarily
from ortune.cli.main import main
from ortune.core.errors import (
    BackendMissing,
    BadData,
    BadModel,
    BadSettings,
    NoPlanFits,
    OrtuneError,
)
from ortune.core.study import Study
from ortune.targets.onnx import OnnxFile

EQUAL = Replay("a test", float("inf"))


@dataclass(frozen=True)
class Notes(Target):
    """Writes down the plan; what it says of itself is the test's.

    Attributes:
        found: What its replay shows.
        lacks: What must be installed.
        refused: Start of the plans that it cannot run.
    """

    found: Replay | None = EQUAL
    lacks: str | None = None
    refused: str = "none"

    def missing(self) -> str | None:
        return self.lacks

    def refuses(self, source: Source) -> str:
        return "it says so" if source.plan.plan.startswith(self.refused) else ""

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        assert not list(folder.iterdir())
        for name, label in source.labels.items():
            (folder / f"{label}.onnx").write_bytes(source.models[name].read_bytes())
        return (f"open {source.name}.onnx",)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        feeds, expected = next(source.feeds())
        assert (folder / "toy.onnx").is_file()
        np.testing.assert_array_equal(
            np.maximum(feeds["x"] + np.float32([1, 2, 3, 4]), 0), expected["y"]
        )
        return self.found


def test_the_winner_is_written_run_again_and_described(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    found = package([bundle], out, Notes())
    assert found.path == out and not found.passed_over and not found.unrun
    assert found.plan.plan == "clean @ cpu(threads=1)" and found.replay == EQUAL
    assert found.lines == ("open toy.onnx",)
    held = json.loads((out / CONTENTS).read_text())
    assert held["plan"] == found.plan.plan and list(held["files"]) == ["toy.onnx"]


def test_the_same_bundle_gives_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    one, two = (package([bundle], tmp_path / name, Notes()).path for name in ("1", "2"))
    files = [p.relative_to(one) for p in sorted(one.rglob("*"))]
    assert files == [p.relative_to(two) for p in sorted(two.rglob("*"))]
    assert all((one / p).read_bytes() == (two / p).read_bytes() for p in files)


def test_the_original_in_the_place_of_a_plan_is_asked_for(study: Study, tmp_path: Path) -> None:
    with pytest.raises(NoPlanFits, match="all that it can run is as-is @ cpu") as error:
        package(build_candidates(study), tmp_path / "package", Notes(refused="clean"))
    assert "ortune optimize MODEL --on cpu" in error.value.fix
    assert "--original" in error.value.fix
    assert not (tmp_path / "package").exists()
    with pytest.raises(BadSettings, match="--original needs --for"):
        pack(study, tmp_path / "a.ortune", original=True)


def test_where_nothing_was_passed_over_the_original_is_what_the_run_found(
    study: Study, tmp_path: Path
) -> None:
    bundle = pack(study, tmp_path / "a.ortune", trial=study.baseline.key, unconfirmed=True)
    assert package([bundle], tmp_path / "package", Notes()).plan.plan == "as-is @ cpu"


def test_an_answer_of_no_is_exit_code_one(
    study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        OnnxFile, "refuses", lambda _, source: "" if "as-is" in source.plan.plan else "no"
    )
    words = ["pack", str(studies.write_run(study)), "--for", "onnx", "-o", str(tmp_path / "out")]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "onnx cannot run clean @ cpu(threads=1): no" in error
    assert "fix: search for what it can run, `ortune optimize MODEL --on cpu`" in error
    assert not (tmp_path / "out").exists()
    assert main([*words, "--original"]) == 0
    assert "as-is @ cpu" in capsys.readouterr().out


def test_of_a_run_the_next_best_confirmed_plan_is_taken_and_named(
    study: Study, tmp_path: Path
) -> None:
    target = Notes(refused="clean")
    found = package(build_candidates(study), tmp_path / "package", target, original=True)
    assert found.plan.plan == "as-is @ cpu"
    assert [(one.plan, one.why) for one in found.passed_over] == [
        ("clean @ cpu(threads=1)", "it says so")
    ]


def test_a_bundle_with_no_plan_for_it_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match=r"no confirmed plan can run on .*it says so") as error:
        package([bundle], tmp_path / "package", Notes(refused="clean"))
    assert "of a run all confirmed plans" in error.value.fix
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize(
    ("target", "kind", "what"),
    [
        (
            Notes(found=Replay("a test", 39.0)),
            BadModel,
            "SNR 39 dB against the bundle's golden answers",
        ),
        (Notes(found=Replay("a test", float("nan"))), BadModel, "gives other outputs"),
        (Notes(found=Replay("a test", 90.0, (1.3, 1.2, 1.4))), OrtuneError, "limit of 1.10"),
        (Notes(lacks="pip install it"), BackendMissing, "cannot be made here"),
    ],
)
def test_what_does_not_hold_leaves_nothing(
    bundle: Path, tmp_path: Path, target: Notes, kind: type[OrtuneError], what: str
) -> None:
    with pytest.raises(kind, match=what):
        package([bundle], tmp_path / "package", target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "source", "toy.ortune"]


@pytest.mark.parametrize(
    "target",
    [
        Notes(found=Replay("a test", 40.0, (1.3, 1.05, 1.4))),
        Notes(found=Replay("a test", 90.0, (1.3, 1.2, 1.4)), limit=0.5),
    ],
)
def test_slower_within_the_limit_passes(bundle: Path, tmp_path: Path, target: Notes) -> None:
    """The limit counts where the interval lies wholly beyond it."""
    assert package([bundle], tmp_path / "package", target).replay == target.found


def test_what_was_not_run_is_said(bundle: Path, tmp_path: Path) -> None:
    found = package([bundle], tmp_path / "package", Notes(replayed=False))
    assert found.replay is None and found.unrun.startswith("the package for ")


def test_only_packages_are_replaced(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    package([bundle], out, Notes())
    with pytest.raises(OrtuneError, match="exists"):
        package([bundle], out, Notes())
    package([bundle], out, Notes(), force=True)
    (out / CONTENTS).unlink()
    with pytest.raises(OrtuneError, match="was not written by pack"):
        package([bundle], out, Notes(), force=True)
    with pytest.raises(OrtuneError, match="there is no folder"):
        package([bundle], tmp_path / "a" / "b", Notes())


def test_a_package_never_replaces_the_folder_of_its_bundle(bundle: Path, tmp_path: Path) -> None:
    out = package([bundle], tmp_path / "package", Notes()).path
    inside = bundle.rename(out / bundle.name)
    with pytest.raises(OrtuneError, match="lies in"):
        package([inside], out, Notes(), force=True)
    assert inside.is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet50", "resnet50"),
        ("a b/../$(c)\n;d", "a_b_c_d"),
        ("..", "model"),
        ("\u202eexe", "exe"),
        ("x" * 100, "x" * 64),
        ("CON.txt", "CON_txt"),
    ],
)
def test_a_strangers_name_becomes_a_word(text: str, expected: str) -> None:
    assert make_word(text) == expected


def test_a_source_has_its_files(bundle: Path) -> None:
    with unpack_temporarily(bundle) as held:
        (plan,) = held.manifest.plans
        source = held.read_source(plan)
        assert source.name == "toy" and source.labels == {"": "toy"}
        assert source.backend == Cpu(threads=1) and not source.external()
        assert source.models[""].is_file()
        assert len(list(source.feeds())) == 2
        folder = held.folder
    assert not folder.exists()


def test_models_that_come_to_one_word_are_refused(bundle: Path) -> None:
    with unpack_temporarily(bundle) as held:
        (plan,) = held.manifest.plans
        source = held.read_source(plan)
        two = replace(source, models={"a b": Path("1"), "a/b": Path("2")})
        with pytest.raises(BadModel, match="one name"):
            two.labels  # noqa: B018
        assert replace(source, models={"a": Path("1"), "b": Path("2")}).labels["a"] == "a"


def test_from_python(study: Study, bundle: Path, tmp_path: Path) -> None:
    assert (pack(study, tmp_path / "a", target=Notes()) / "toy.onnx").is_file()
    assert (pack(bundle, tmp_path / "b", target=Notes()) / "toy.onnx").is_file()
    with pytest.raises(BadData, match="no run in"):
        pack(bundle, tmp_path / "c.ortune")
    assert pack(str(studies.write_run(study)), tmp_path / "d.ortune").is_file()


@pytest.mark.parametrize(
    "given", [studies.write_run, lambda study: pack(study, Path(study.root) / "b")]
)
def test_on_the_command_line(
    study: Study,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: Callable[[Study], Path],
) -> None:
    words = ["pack", str(given(study)), "-o", str(tmp_path / "out")]
    assert main([*words, "--for", "kserve(replayed=false)"]) == 0
    told = capsys.readouterr().out
    assert "package: " in told and "clean @ cpu(threads=1)" in told
    assert "not run here: KServe; Triton 26.05 itself" in told and "kubectl apply" in told
    assert main([*words, "--for", "kserve(replayed=false)", "--force", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["plan"] == "clean @ cpu(threads=1)" and found["replay"] is None
    assert main([*words, "--for", "nowhere", "--force"]) == 2
    assert "no target 'nowhere'" in capsys.readouterr().err
