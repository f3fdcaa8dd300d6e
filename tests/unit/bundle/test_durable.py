"""What a person is handed outlives a loss of power; what can be made again is not waited for."""

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.unit.studies import MODEL, study

from ortune.bundle.pack import pack
from ortune.core.study import Ending
from ortune.graph.io import file
from ortune.reporting.html import report
from ortune.search.experiment.ledger import Ledger, write_ending, write_header
from ortune.search.recipe import built

Act = Callable[[Path], object]


def model(folder: Path) -> onnx.ModelProto:
    onnx.save(onnx.parser.parse_model(MODEL), folder / "source.onnx")
    return file.load(folder / "source.onnx")


def again(folder: Path) -> None:
    """Add a trial to a ledger that is not there yet."""
    trial = study(folder / "other").trials[0]
    Ledger(folder).append(trial)


ACTS: dict[str, Act] = {
    "header.json": lambda folder: write_header(folder, study(folder / "run").header),
    "ending.json": lambda folder: write_ending(folder, Ending(finished="done")),
    "ledger.jsonl": again,
    "model.onnx": lambda folder: file.save(model(folder), folder / "model.onnx"),
    "report.md": lambda folder: report(study(folder / "run"), folder / "report.md"),
    "toy.ortune": lambda folder: pack(study(folder / "run"), folder / "toy.ortune"),
}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files")
@pytest.mark.parametrize(("name", "act"), ACTS.items(), ids=ACTS)
def test_bytes_and_name_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, act: Act
) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    act(tmp_path)
    own = [place for place, path in enumerate(synced) if name in path.name]
    assert own and tmp_path in synced[own[0] + 1 :]


def test_builds_of_a_search_are_not_waited_for_and_a_short_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("waited for the disk"))
    folder = tmp_path / built.steps_key(())
    folder.mkdir()
    path = file.save(model(tmp_path), folder / "toy.onnx", durable=False)
    built.record_build(built.BuiltModel(path, ()), "toy")
    assert built.find_build(tmp_path, "toy", ()) == built.BuiltModel(path, ())
    path.write_bytes(b"")
    assert built.find_build(tmp_path, "toy", ()) is None
