"""Fixes about environments and devices are followed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from ortune.measurement.devices import Device
from ortune.measurement.environment import RECORD, environment_folder
from ortune.measurement.environments.check import check_device
from ortune.search.targets import read_targets
from tests.unit.fixing.kit import (
    SITUATIONS,
    Pair,
    Room,
    check_situation,
    demand,
    end_at,
    follow,
    save_text,
)


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


SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""


def test_a_device_that_does_not_answer_is_tried_by_hand(room: Room) -> None:
    """The fix is a whole command, whose `--version` is Python's; it shows the reason."""
    program = room.folder / "ssh"
    save_text(program, SSH).chmod(0o755)
    room.patch.setenv("PATH", f"{room.folder}:/usr/bin:/bin")
    checked = check_device(Device("pi5", "pi@pi5", "/no/python", str(room.folder / "there")))
    (command,) = re.findall(r"`(.+--version.*)`", checked.fix)
    tried = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    assert tried.returncode and "/no/python" in tried.stderr


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
