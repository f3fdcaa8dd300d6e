"""What doctor says of an installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.cli import doctor


def test_one_runtime_is_fine() -> None:
    assert doctor.problems({"onnxruntime": "1.31.1"}) == []


def test_two_runtimes_overwrite_each_other() -> None:
    (found,) = doctor.problems({"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.0"})
    assert "onnxruntime, onnxruntime-gpu are installed together" in found["what"]
    assert found["fix"].startswith("pip uninstall -y onnxruntime onnxruntime-gpu && pip install")


@pytest.mark.parametrize(
    ("host", "mask", "effective", "text"),
    [
        (8, 8, 8, "8 of 8 usable"),
        (8, 4, 4, "4 of 8 usable (the affinity mask narrows 8)"),
        (8, 8, 2, "2 of 8 usable (a cgroup quota narrows 8)"),
        (8, 4, 2, "2 of 8 usable (a cgroup quota narrows 4)"),
    ],
)
def test_cpus_say_what_narrows_them(host: int, mask: int, effective: int, text: str) -> None:
    assert doctor.cpu_text({"host": host, "affinity": mask, "effective": effective}) == text


def test_the_records_of_searches_are_found(cache_home: Path) -> None:
    folder = cache_home / "ortune" / "paid"
    assert doctor.warm_start() == {"folder": folder, "files": 0, "bytes": 0}
    assert doctor.paid_text(doctor.warm_start()) == f"nothing recorded yet in {folder}"
    folder.mkdir(parents=True)
    (folder / "one.json").write_text("x" * 2048)
    (folder / "one.lock").write_text("")
    assert doctor.warm_start() == {"folder": folder, "files": 1, "bytes": 2048}
    assert doctor.paid_text(doctor.warm_start()).endswith(f" in {folder}")
    nowhere = {"folder": None, "files": 0, "bytes": 0}
    assert doctor.paid_text(nowhere) == "not recorded: there is no home folder"


def test_memory_is_readable() -> None:
    found = doctor.memory()
    total, available = found["total"], found["available"]
    assert total is not None
    assert available is not None
    assert 0 < available <= total
