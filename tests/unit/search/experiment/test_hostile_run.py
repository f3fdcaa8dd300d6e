"""A run's folder from a stranger: reading, reporting and packing it runs nothing of theirs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.backends.torch import Torch
from ortune.bundle.pack import pack
from ortune.cli.main import main
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.trial import Plan
from ortune.search.experiment import golden
from ortune.search.experiment.ledger import lock_run, read_header, read_study


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return studies.write_run(studies.study(tmp_path))


def retold(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every record of a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def in_header(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = run / "header.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def refused(run: Path, said: str) -> None:
    with pytest.raises(BadData, match=said) as caught:
        read_study(run)
    assert len(str(caught.value).splitlines()) == 2


def test_a_run_is_read_as_before(run: Path) -> None:
    assert read_study(run).best.key == "aa11" * 4


@pytest.mark.parametrize(
    "backend",
    [
        {"config": ["session.collect_node_memory_stats_to_file=/tmp/x"]},
        {"config": ["session.optimized_model_filepath=/tmp/x"]},
        {"level": "loud"},
        {"threads": 10**12},
        {"is": "backends/evil.py:X"},
        {"is": "metrics/top1"},
    ],
)
def test_settings_with_power_are_refused(
    run: Path, backend: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    retold(run / "ledger.jsonl", lambda line: line["plan"]["backend"].update(backend))
    refused(run, "a setting that a file|is not|cannot be read|is not an installed backend")
    assert main(["pack", str(run), "-o", str(run.parent / "x.ortune")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert not (run.parent / "x.ortune").exists()


def test_so_are_those_of_the_baseline(run: Path) -> None:
    evil = ["ep.context_file_path=/tmp/x"]
    in_header(run, lambda data: data["job"]["baseline"].update(config=evil))
    refused(run, r"ep\.context_file_path")
    with pytest.raises(BadData, match=r"ep\.context_file_path"):
        read_header(run)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"{", b"3", b"[]", b'"x"'])
@pytest.mark.parametrize("name", ["header.json", "ending.json", "ledger.jsonl"])
def test_files_that_are_none(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content + b"\n")
    refused(run, ".")


@pytest.mark.parametrize(
    "name",
    [
        *("header.json", "ledger.jsonl", "ending.json", "report.html", "lock", "workers", "data"),
        *("artefacts/0123/toy.onnx", "golden/model.inputs.stream", "artefacts/new/deep"),
    ],
)
def test_links_out_of_the_folder_are_neither_written_through_nor_handed_on(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(mine)
    refused(run, "links out of the run's folder")
    with pytest.raises(BadData, match="links out of the run's folder"):
        read_header(run)
    with pytest.raises(BadData, match="links out of the run's folder"), lock_run(run):
        raise AssertionError("locked")
    model = str(tmp_path / "source/toy.onnx")
    page, bundle = str(tmp_path / "page.html"), str(tmp_path / "x.ortune")
    for words in (
        ["report", str(run)],
        ["report", str(run), "-o", page],
        ["pack", str(run), "-o", bundle],
        ["optimize", model, "-o", str(run), "--time", "1s"],
    ):
        assert main(words) == 2
        assert "links out of the run's folder" in capsys.readouterr().err
    assert mine.read_text() == "precious"


def test_links_within_it_are_followed(run: Path) -> None:
    (run / "artefacts/again").symlink_to(run / "artefacts/0123")
    assert read_study(run).best


class TestFunctions:
    """A run names its metric; only a person has it imported."""

    @pytest.fixture(autouse=True)
    def evil(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "evilmetric.py").write_text("open('ran', 'w')\ndef fn(*_): return 1\n")
        monkeypatch.chdir(tmp_path)
        return tmp_path / "ran"

    @pytest.mark.parametrize("name", ["function", "score"])
    def test_reading_and_reporting_import_nothing(self, run: Path, evil: Path, name: str) -> None:
        metric = {"is": f"metrics/{name}", "path": "evilmetric:fn", "share": 0.0}
        in_header(run, lambda data: data["job"]["budget"].update(metric=metric))
        study = read_study(run)
        assert str(study.budget) == "evilmetric:fn>=0.999"
        assert study.budget.metric.name() == name and study.front()
        assert main(["report", str(run), "-o", str(run.parent / "page.html")]) == 0
        assert main(["pack", str(run), "-o", str(run.parent / "x.ortune")]) == 0
        assert not evil.exists()

    def test_the_direction_is_read_off_the_scores(self, run: Path) -> None:
        metric = {"is": "metrics/function", "path": "evilmetric:fn", "share": 0.0}
        in_header(run, lambda data: data["job"]["budget"].update(metric=metric))

        def lower(line: dict[str, Any]) -> None:
            for score in line["scores"]:
                score["low"] = float("-inf")

        assert read_study(run).budget.metric.higher_is_better
        retold(run / "ledger.jsonl", lower)
        assert not read_study(run).budget.metric.higher_is_better
        assert str(read_study(run).budget) == "evilmetric:fn<=0.999"


class TestPacking:
    def test_any_file_is_no_library(self, tmp_path: Path) -> None:
        secret = tmp_path / "id_rsa"
        secret.write_text("-----BEGIN")
        study = studies.study(tmp_path, backend=Cpu(custom_ops=(str(secret),)))
        with pytest.raises(BadSettings, match="neither a shared library nor a Python file"):
            pack(study, tmp_path / "x.ortune")

    def test_code_that_only_the_run_names_does_not_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        evil = tmp_path / "evil.py"
        evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        study = studies.study(tmp_path, backend=Cpu(custom_ops=(str(evil),)))
        golden.outputs_path(Path(study.root), "", study.best).unlink()
        with pytest.raises(BadSettings, match="code of its own for its golden samples") as caught:
            pack(study, tmp_path / "x.ortune")
        assert "--allow-custom-ops" in caught.value.fix
        assert main(["pack", str(studies.write_run(study)), "-o", str(tmp_path / "x.ortune")]) == 2
        assert not (tmp_path / "ran").exists()
        with pytest.raises(OrtuneError, match="does not run any more"):
            pack(study, tmp_path / "x.ortune", custom_ops=True)
        assert (tmp_path / "ran").exists()
        capsys.readouterr()

    def test_a_backend_that_is_code_is_not_packed(self, tmp_path: Path) -> None:
        study = studies.study(tmp_path)
        module = Torch(source="own.module:factory", weights="own.safetensors")
        plan = Plan(study.best.plan.recipe, module)
        trials = tuple(studies.replace(t, plan=plan) for t in study.trials)
        with pytest.raises(BadSettings, match="cannot bring the code of torch"):
            pack(studies.replace(study, trials=trials), tmp_path / "x.ortune")

    def test_settings_that_a_reader_refuses_are_not_written(self, tmp_path: Path) -> None:
        backend = Cpu(threads=1, config=("session.enable_profiling=1",))
        with pytest.raises(BadSettings, match="a bundle: cpu"):
            pack(studies.study(tmp_path, backend=backend), tmp_path / "x.ortune")

    def test_golden_samples_are_made_with_the_threads_at_hand(self, tmp_path: Path) -> None:
        study = studies.study(tmp_path, backend=Cpu(threads=5000))
        golden.outputs_path(Path(study.root), "", study.best).unlink()
        shutil.rmtree(Path(study.root) / "workers", ignore_errors=True)
        pack(study, tmp_path / "x.ortune")
        (job,) = (Path(study.root) / "workers").glob("*/job.json")
        assert json.loads(job.read_text())["backend"]["threads"] < 1000
