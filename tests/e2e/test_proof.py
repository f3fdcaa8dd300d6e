"""How many samples prove a budget is said before the search, and it is so."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from tests.models import write_classifier
from tests.picking import Pick, searching_by

import ortune as ot
from ortune.core.event import Event, Note
from ortune.core.trial import Status, Trial, Verdict

HALVED = Pick("coarse(care=true)")
"""Keeps 16 of the 32 bits of each weight: as good as the original."""
DOCS = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture(autouse=True)
def _halving(monkeypatch: pytest.MonkeyPatch) -> None:
    searching_by(monkeypatch, HALVED)


def search(folder: Path, samples: int, budget: str, **more: object) -> tuple[ot.Study, str]:
    """Search on a scripted clock; return the study and what was said of the samples."""
    model, data = write_classifier(folder / str(samples), samples)
    return heard(model, folder / f"run-{samples}", data=data, budget=budget, **more)


def heard(model: Path, out: Path, **more: object) -> tuple[ot.Study, str]:
    said: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Note):
            said.append(event.text)

    given = {"on": "scripted", "baseline": "scripted", "time": "20m"} | more
    study = ot.optimize(model, out=out, sink=listen, **given)  # type: ignore[arg-type]
    (outlook,) = [text for text in said if "held out" in text or "kept apart" in text]
    assert study.header.outlook == outlook
    return study, outlook


def lossy_finals(study: ot.Study) -> list[Trial]:
    found = [t for t in study.final if t.plan.lossy and t.status is Status.OK]
    assert found, [t.why for t in study.trials]
    return found


def printed(outlook: str) -> int:
    found = re.search(r"([\d,]+) samples would let it be proved", outlook)
    assert found, outlook
    return int(found[1].replace(",", ""))


def test_the_number_that_is_printed_proves_a_share_one_fewer_does_not(tmp_path: Path) -> None:
    few, outlook = search(tmp_path, 59, "cosine>=0.9")
    assert outlook.startswith("59 samples: 16 are held out, too few to prove the accuracy budget")
    assert {t.score.verdict for t in lossy_finals(few) if t.score} == {Verdict.LIKELY}
    enough = printed(outlook)
    assert enough == 120
    for samples, verdict in ((enough - 1, Verdict.LIKELY), (enough, Verdict.PROVED)):
        study, outlook = search(tmp_path, samples, "cosine>=0.9")
        assert ("enough to prove" in outlook) is (verdict is Verdict.PROVED)
        for trial in lossy_finals(study):
            assert trial.score is not None
            assert trial.score.verdict is verdict
            assert trial.score.error == pytest.approx(0.05 / 3)
            assert trial.score.samples == sum(study.samples[p] for p in ("search", "final"))


@pytest.mark.parametrize(
    ("samples", "held"), [pytest.param(200, 80, marks=pytest.mark.long), (400, 100)]
)
def test_two_hundred_and_four_hundred_prove_a_share(
    tmp_path: Path, samples: int, held: int
) -> None:
    study, outlook = search(tmp_path, samples, "cosine>=0.9")
    assert outlook == (
        f"{samples} samples: {held} are held out, "
        "enough to prove the accuracy budget if none of them shows a loss"
    )
    assert study.best.score is not None
    assert study.best.score.verdict is Verdict.PROVED
    assert study.best.score.proved_on == held
    tried = [t for t in study.trials if t.part == "search" and t.plan.lossy and t.score]
    assert {t.score.verdict for t in tried if t.score} <= {Verdict.UNDECIDED, Verdict.FAILS}


def test_the_number_that_is_printed_proves_a_point_of_top1(tmp_path: Path) -> None:
    few, outlook = search(tmp_path, 200, "top1>=base-0.01")
    enough = printed(outlook)
    assert 400 < enough < 1600
    assert {t.score.verdict for t in lossy_finals(few) if t.score} == {Verdict.UNDECIDED}
    just, outlook = search(tmp_path, enough, "top1>=base-0.01")
    assert "enough to prove" in outlook
    assert {t.score.verdict for t in lossy_finals(just) if t.score} == {Verdict.PROVED}


@pytest.mark.long
def test_1600_samples_prove_a_point_of_top1(tmp_path: Path) -> None:
    study, outlook = search(tmp_path, 1600, "top1>=base-0.01")
    assert "enough to prove" in outlook
    assert study.best.plan.lossy
    assert study.best.score is not None
    assert study.best.score.verdict is Verdict.PROVED


def test_a_budget_finer_than_the_data_is_said(tmp_path: Path) -> None:
    _, outlook = search(tmp_path, 60, "top1>=base-0.01")
    assert "cannot tell 0.01" in outlook


def test_equal_samples_prove_nothing(tmp_path: Path) -> None:
    model, data = write_classifier(tmp_path / "one", 30)
    arrays = dict(np.load(data / "all.npz"))
    tiled = {name: np.concatenate([rows] * 10) for name, rows in arrays.items()}
    np.savez(data / "all.npz", **tiled)
    study, outlook = heard(model, tmp_path / "run", data=data, budget="cosine>=0.9")
    assert outlook.startswith("300 samples in 30 different ones: ")
    assert "accuracy budget; 120 different samples would" in outlook
    assert {t.score.verdict for t in lossy_finals(study) if t.score} == {Verdict.UNDECIDED}


def test_a_run_that_goes_on_does_not_prove_more_than_its_error_allows(tmp_path: Path) -> None:
    model, data = write_classifier(tmp_path / "task", 200)
    given = {"data": data, "budget": "cosine>=0.9"}
    study, _ = heard(model, tmp_path / "run", **given)
    more, _ = heard(model, tmp_path / "run", target_speedup=1.01, **given)
    judged = [t.score for t in more.final if t.score]
    spent = sum(s.error for s in judged if s.verdict is Verdict.PROVED and s.proved_on)
    assert len(judged) >= len(study.final)
    assert spent <= 0.05 + 1e-9


def test_the_example_of_the_docs_runs_and_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```python\n(# sums\.py.*?)```", DOCS.read_text(), re.DOTALL)
    searching_by(monkeypatch, Pick())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.py").write_text(block)
    runpy.run_path("sums.py")
    command = re.match(
        r"# sums.py: ortune optimize (\S+) --evaluate (\S+) --budget \"(.*)\"", block
    )
    assert command is not None
    model, function, budget = command.groups()
    study, outlook = heard(
        Path(model),
        tmp_path / "run",
        evaluate=function,
        budget=budget,
        on="cpu(threads=1)",
        baseline="cpu(threads=1)",
        time="30s",
    )
    assert outlook.startswith("500 samples in 250 independent groups: ")
    assert "enough to prove" in outlook
    parts = study.header.parts
    assert sum(map(len, parts.values())) == 500
    pages = [{at // 2 for at in part} for part in parts.values()]
    assert len(set().union(*pages)) == sum(map(len, pages))
    for trial in study.final:
        assert trial.score is not None
        assert trial.score.verdict is not Verdict.FAILS
