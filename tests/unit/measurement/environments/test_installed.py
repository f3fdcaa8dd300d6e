"""Environments are ours, whole or not there, and never a stranger's folder."""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit import environments

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.cli.main import main
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings, OrtuneError
from ortune.measurement import environment as lookup
from ortune.measurement.environments import installed
from ortune.measurement.environments.check import (
    check_environment,
    find_further_backends,
    list_environment_offers,
)
from ortune.measurement.environments.installed import (
    add_environment,
    ensure_environment,
    list_environments,
    remove_environment,
)
from ortune.measurement.environments.releases import parse_release
from ortune.measurement.process import require_backend

OLD = "onnxruntime==1.24.4"


@pytest.fixture
def home(cache_home: Path) -> Path:
    return cache_home / "ortune" / "environments"


@pytest.fixture
def old(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an environment that was added as ``old``."""
    environments.linked(monkeypatch)
    add_environment(OLD, "old")
    return home / "old"


def test_one_is_added_listed_checked_and_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = environments.linked(monkeypatch)
    assert main(["doctor", "env", "list"]) == 0
    assert "no environment yet" in capsys.readouterr().out
    assert main(["doctor", "env", "add", OLD]) == 0
    said = capsys.readouterr()
    assert "works" in said.out and str(home / "ort-1.24.4") in said.out
    assert "making environment ort-1.24.4" in said.err
    assert asked[0][-len(parse_release(OLD).distributions) :] == list(
        parse_release(OLD).distributions
    )
    assert "--no-deps" in asked[0]
    assert main(["doctor", "env", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["release"]) for one in told["environments"]] == [("ort-1.24.4", OLD)]
    assert OLD in told["releases"]
    assert main(["doctor", "env", "check", "ort-1.24.4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["versions"]["onnxruntime"]
    assert main(["doctor", "env", "remove", "ort-1.24.4"]) == 0
    assert not (home / "ort-1.24.4").exists()
    assert main(["doctor", "env", "remove", "ort-1.24.4"]) == 2
    assert "no environment 'ort-1.24.4'" in capsys.readouterr().err
    assert [path.name for path in home.iterdir()] == [".ort-1.24.4.lock"]


def test_a_worker_runs_there_with_our_source_and_nothing_else_of_ours(old: Path) -> None:
    python = lookup.find_interpreter("old")
    assert python is not None and python.is_relative_to(old)
    given = lookup.worker_variables("old")
    assert [path.name for path in Path(given["PYTHONPATH"]).iterdir()] == ["ortune"]
    code = "import ortune, sys; print(sys.prefix); print(ortune.__path__[0])"
    said = subprocess.run([python, "-c", code], env=dict(given), capture_output=True, text=True)
    prefix, source = said.stdout.splitlines()
    assert Path(prefix) == old
    assert Path(source).resolve() == Path(lookup.__file__).resolve().parents[1]
    offered = require_backend(Cpu(), "old")
    assert offered.versions["ortune"] and "CPUExecutionProvider" in offered.providers
    assert lookup.find_interpreter(HERE) is None
    assert lookup.worker_variables(HERE) == {}


def test_shared_libraries_that_are_packages_are_found_by_a_worker(
    old: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/own")
    assert "LD_LIBRARY_PATH" not in lookup.worker_variables("old")
    packages = lookup.find_packages(old)
    assert packages is not None
    folders = [
        packages / name for name in ("nvidia/cu13/lib", "nvidia/cudnn/lib", "tensorrt_libs")
    ]
    for folder in folders:
        folder.mkdir(parents=True)
    found = lookup.worker_variables("old")["LD_LIBRARY_PATH"].split(":")
    assert set(found[:3]) == set(map(str, folders)) and found[3:] == ["/opt/own"]
    assert lookup.find_nvidia_folders(home / "none") == ()


def test_two_wheels_in_one_are_refused_before_a_worker_starts(old: Path) -> None:
    packages = lookup.find_packages(old)
    assert packages is not None
    for name in ("onnxruntime", "onnxruntime_directml"):
        info = packages / f"{name}-1.24.4.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.24.4\n")
    with pytest.raises(
        BadSettings, match=r"in environment 'old' onnxruntime, onnxruntime-directml"
    ):
        require_backend(Cpu(), "old")
    (found,) = list_environment_offers()
    assert "installed together" in found.problem and "env remove old" in found.fix


def test_what_environments_offer_is_asked_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    environments.linked(monkeypatch)
    assert list_environment_offers() == () and find_further_backends([]) == ()
    add_environment("openvino", "vino")
    (found,) = list_environment_offers()
    assert list(found.offers) == ["cpu", "openvino"] and not found.problem
    names = [(backend.name(), place) for backend, place, _ in find_further_backends([Cpu()])]
    assert names == [("openvino", "vino")]
    assert find_further_backends([Cpu(), Openvino()]) == ()


def test_a_wheel_on_an_index_of_its_makers_is_told_with_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "ERROR: No matching distribution found for tensorrt-cu13-libs==10.16.1.11\n"
    failed = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(installed.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OrtuneError) as error:
        add_environment("tensorrt")
    asked = "ortune doctor env add tensorrt==10.16.1.11"
    line = f"PIP_EXTRA_INDEX_URL='<address of NVIDIA package index>' {asked}"
    assert error.value.fix.endswith(line)
    with pytest.raises(OrtuneError) as other:
        add_environment("cuda")
    assert "PIP_EXTRA_INDEX_URL" not in other.value.fix


def test_it_is_made_once_and_another_release_needs_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = environments.linked(monkeypatch)
    first = add_environment(OLD)
    assert add_environment(OLD) == first == ensure_environment(parse_release(OLD))
    assert len(asked) == 1
    assert add_environment(OLD, "mine").name == "mine"
    with pytest.raises(BadSettings, match=r"'mine' holds onnxruntime==1\.24\.4"):
        add_environment("onnxruntime==1.30.0", "mine")
    assert [one.name for one in list_environments()] == ["mine", "ort-1.24.4"]


def test_of_two_adds_at_once_one_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = environments.linked(monkeypatch)
    quick = installed.subprocess.run

    def slow(command: list[str], **known: Any) -> Any:
        time.sleep(0.3)
        return quick(command, **known)

    monkeypatch.setattr(installed.subprocess, "run", slow)
    both = [threading.Thread(target=add_environment, args=(OLD,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(asked) == 1 and [one.name for one in list_environments()] == ["ort-1.24.4"]


def test_what_a_killed_add_left_is_cleared_away(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments.linked(monkeypatch)
    left = home / ".ort-1.24.4.99999.part"
    left.mkdir(parents=True)
    add_environment(OLD)
    assert not left.exists()


def test_pips_reason_is_told_and_nothing_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(OrtuneError) as error:
        add_environment(OLD)
    assert "pip: No matching distribution found for onnxruntime==1.24.4" in error.value.what
    assert "\n" not in error.value.what and "PIP_INDEX_URL" in error.value.fix
    assert [path.name for path in home.iterdir()] == [".ort-1.24.4.lock"]


def test_without_a_network_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError("
        "': Failed to establish a new connection: [Errno -3] Temporary failure in name "
        "resolution')': /simple/\n"
        "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n"
        "ERROR: No matching distribution found for x\n"
    )
    failed = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(installed.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OrtuneError, match=r"for x \(\[Errno -3\] Temporary failure in name res"):
        add_environment(OLD)


@pytest.mark.parametrize("name", ["..", "/bin", "a/b", "here", "Old", "", "-x", "x" * 65, ".a"])
def test_a_name_is_a_word(name: str) -> None:
    with pytest.raises(BadSettings, match=r"is no name for an environment|is the Python"):
        remove_environment(name)
    with pytest.raises(BadSettings):
        lookup.environment_folder(name)


def test_a_folder_of_somebody_else_is_neither_used_nor_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = environments.linked(monkeypatch)
    kept = home / "ort-1.24.4" / "thesis.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    for act in (remove_environment, lambda name: add_environment(OLD, name)):
        with pytest.raises(BadSettings, match="is not an environment that ortune made"):
            act("ort-1.24.4")
    assert kept.read_text() == "mine" and not asked
    with pytest.raises(BadSettings, match=r"no environment 'ort-1\.24\.4' on this machine"):
        lookup.find_interpreter("ort-1.24.4")


def test_a_python_that_is_gone_is_said(old: Path) -> None:
    lookup.python_path(old).unlink()
    with pytest.raises(BadSettings, match="was made with is gone"):
        require_backend(Cpu(), "old")
    with pytest.raises(BadSettings, match="no environment 'gone' on this machine"):
        require_backend(Cpu(), "gone")
    with pytest.raises(BadSettings, match="was made with is gone"):
        lookup.find_interpreter("old")


def test_a_record_that_cannot_be_read_is_not_trusted(old: Path) -> None:
    for text in ("", "[]", '{"release": 1}', "{" * 70_000):
        (old / lookup.RECORD).write_text(text)
        (found,) = list_environments()
        assert found.release == "" and not check_environment("old").problem
        with pytest.raises(BadSettings, match="'old' holds something else"):
            add_environment(OLD, "old")


def test_what_does_not_work_is_exit_code_1(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in old.rglob("linked.pth"):
        path.unlink()
    assert main(["doctor", "env", "check", "old"]) == 1
    said = capsys.readouterr().out
    assert "No module named 'numpy'" in said and "env remove old" in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["list", "old"], "list takes no 'old'"),
        (["add"], "add takes a release"),
        (["check"], "check takes a name"),
        (["check", "old", "--name", "x"], "--name works only with add"),
        (["check", "old"], "no environment 'old'"),
        (["drop", "old"], "'drop' is not one of"),
    ],
)
def test_words_that_do_not_belong_together(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "env", *words]) == 2
    said = capsys.readouterr().err
    assert what in said and len(said.splitlines()) == 2
