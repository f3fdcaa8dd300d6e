"""Fixes about environments and devices are followed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.errors import OrtuneError
from ortune.measurement import process as asking
from ortune.measurement.devices import Device
from ortune.measurement.environment import RECORD, environment_folder, find_packages, python_path
from ortune.measurement.environments.check import check_device, list_environment_offers
from ortune.measurement.environments.installed import add_environment
from ortune.measurement.process import require_backend
from ortune.search.targets import read_targets
from tests.unit import environments
from tests.unit.fixing.kit import SITUATIONS, Pair, check_situation, demand, follow, save_text
from tests.unit.following import Room, end_at


@follow("search/targets:read_targets#2", "--executor")
def a_backend_asked_for_here_and_on_a_device(room: Room) -> Iterator[Pair]:
    yield (
        lambda: read_targets("cpu in a", "pi5"),
        end_at("no environment 'a'", lambda: read_targets("cpu in a")),
    )


@follow("measurement/environments/installed:add_environment", "--name")
def an_environment_of_another_release(room: Room) -> Iterator[Pair]:
    for name, release in (("a", "openvino==1"), ("b", "onnxruntime==1.24.4")):
        folder = environment_folder(name)
        folder.mkdir(parents=True)
        record = {"release": release, "distributions": [release], "python": "3"}
        save_text(folder / RECORD, json.dumps(record))
    text = "doctor env add onnxruntime==1.24.4 --name"
    yield lambda: demand(f"{text} a", {}), end_at("Python|python", lambda: demand(f"{text} b", {}))


@follow("measurement/environments/installed:_foreign_folder_error", "--name")
def a_folder_that_is_no_environment(room: Room) -> Iterator[Pair]:
    environment_folder("a").mkdir(parents=True)
    record = {"release": "onnxruntime==1.24.4", "distributions": [], "python": "3"}
    environment_folder("b").mkdir()
    save_text(environment_folder("b") / RECORD, json.dumps(record))
    text = "doctor env add onnxruntime==1.24.4 --name"
    yield lambda: demand(f"{text} a", {}), end_at("Python|python", lambda: demand(f"{text} b", {}))


OLD = "onnxruntime==1.24.4"
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""


@follow("measurement/environment:find_interpreter", "ortune doctor env remove old")
def an_environment_whose_python_is_gone(room: Room) -> Iterator[Pair]:
    environments.linked(room.patch)
    add_environment(OLD, "old")
    python_path(environment_folder("old")).unlink()
    yield lambda: require_backend(Cpu(), "old"), obey_and_add


def obey_and_add(fix: str) -> None:
    """Remove an environment as a fix says, add it again and run in it."""
    demand(fix.split("`")[1].removeprefix("ortune "), {})
    add_environment(OLD, "old")
    require_backend(Cpu(), "old")


def install_both(room: Room) -> None:
    environments.linked(room.patch)
    add_environment(OLD, "old")
    packages = find_packages(environment_folder("old"))
    assert packages is not None
    for name in ("onnxruntime", "onnxruntime_directml"):
        info = packages / f"{name}-1.24.4.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.24.4\n"
        save_text(info / "METADATA", text)


@follow("measurement/environment:find_interpreter#2", "ortune doctor env remove old")
def two_wheels_of_one_runtime(room: Room) -> Iterator[Pair]:
    install_both(room)
    yield lambda: require_backend(Cpu(), "old"), obey_and_add


@follow("measurement/environments/check:_query_offers", "ortune doctor env remove old")
def two_wheels_of_one_runtime_in_a_list(room: Room) -> Iterator[Pair]:
    install_both(room)

    def look() -> None:
        (found,) = list_environment_offers()
        if found.problem:
            raise OrtuneError(found.problem, fix=found.fix)

    def obey(fix: str) -> None:
        obey_and_add(fix)
        look()

    yield look, obey


@follow("measurement/environments/check:require_backend_with_hint", "--on")
def a_backend_that_another_environment_has(room: Room) -> Iterator[Pair]:
    """Of this Python's own environment OpenVINO is said to be missing; a linked one has it."""
    pytest.importorskip("openvino")
    environments.linked(room.patch)
    add_environment("openvino", "vino")
    real = asking.query_capabilities

    def ask(backend: Backend, environment: str = HERE) -> Capabilities:
        missing = Capabilities(missing="pip install openvino", state="not installed")
        return missing if environment == HERE else real(backend, environment)

    room.patch.setattr(asking, "query_capabilities", ask)

    def obey(fix: str) -> None:
        said = re.search('--on "([^"]+)"', fix)
        assert said is not None
        read_targets(said[1])

    yield lambda: read_targets("openvino"), obey


@follow("measurement/environments/check:check_device", "--version")
def a_device_that_does_not_answer(room: Room) -> Iterator[Pair]:
    """The fix is a whole command, whose `--version` is Python's; it shows the reason."""
    program = room.folder / "ssh"
    save_text(program, SSH).chmod(0o755)
    room.patch.setenv("PATH", f"{room.folder}:/usr/bin:/bin")

    def check() -> None:
        checked = check_device(Device("pi5", "pi@pi5", "/no/python", str(room.folder / "there")))
        raise OrtuneError(checked.problem, fix=checked.fix)

    def obey(fix: str) -> None:
        (command,) = re.findall(r"`(.+--version.*)`", fix)
        tried = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
        assert tried.returncode and "/no/python" in tried.stderr

    yield check, obey


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
