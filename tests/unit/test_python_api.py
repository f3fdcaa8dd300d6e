"""The Python API: what help lists, its reference, and a parameter for every option."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable

import click
import pytest
from tools import python_api

import ortune
import ortune as ot
from ortune.cli.main import root

COMMANDS_ALONE = {"demo", "doctor", "ui"}
"""They are about the installation or for a person to look at, not about a model."""
OF_THE_TERMINAL = {
    "": {"more", "json_to"},
    "compare": {"page"},
    "cost": {"page"},
    "inspect": {"tables"},
    "loadtest": {"page"},
    "optimize": {"quiet"},
    "verify": {"page", "no_samples"},
}
"""Options that only choose what is printed: what a function returns holds everything."""
FUNCTIONS: dict[str, tuple[Callable[..., object], ...]] = {
    "calibrate": (ot.calibrate, ot.compare_observers),
    "cost": (ot.cost, ot.timeline),
    "optimize": (ot.optimize, ot.buckets),
    "recheck": (ot.recheck, ot.verify_signature),
    "run": (ot.load,),
}
ELSEWHERE = {
    "calibrate": {"compare": "compare_observers"},
    "cost": {"timeline": "timeline"},
    "optimize": {"buckets": "buckets"},
    "pack": {"run": "study", "out": "path", "allow_custom_ops": "custom_ops", "plans": "trial"},
    "report": {"run": "study", "out": "path"},
    "recheck": {"signature_only": "verify_signature"},
    "run": {
        "inputs": "a call of the engine",
        "data": "calls of engine.batch",
        "executor": "calls of engine.batch",
        "out": "what the call returns",
        "force": "what the call returns",
        "allow_custom_ops": "custom_ops",
        "opt_level": "on",
        "memory_limit": "the limit of the process that calls",
        "unpack_limit": "whoever reads the samples",
        "text_pair": "tensors are given",
        "tokens": "how many calls of the engine feed their token back",
    },
}
"""Option -> what stands for it in Python."""


def verbs() -> list[str]:
    return list(root.list_commands(click.Context(root)))


@pytest.mark.parametrize("verb", sorted({*verbs()} - COMMANDS_ALONE))
def test_every_option_has_its_parameter(verb: str) -> None:
    command = root.get_command(click.Context(root), verb)
    assert command is not None
    functions = FUNCTIONS.get(verb) or (getattr(ot, verb),)
    taken = {name for function in functions for name in inspect.signature(function).parameters}
    options = {one.name or "" for one in command.params}
    options -= OF_THE_TERMINAL[""] | OF_THE_TERMINAL.get(verb, set())
    observer = {"observer"} if verb == "calibrate" else set()
    missing = options - taken - {*ELSEWHERE.get(verb, {})} - observer
    assert not missing, f"ortune.{verb} lacks what the command takes"


def test_the_exceptions_are_needed() -> None:
    for verb, options in [*OF_THE_TERMINAL.items(), *ELSEWHERE.items()]:
        command = root.get_command(click.Context(root), verb or "bench")
        assert command is not None
        assert set(options) <= {one.name for one in command.params}, verb


def test_help_lists_the_verbs_with_a_line_each() -> None:
    assert python_api.first_lines() in (ot.__doc__ or "")
    assert len(python_api.verbs()) >= 16


def test_every_public_name_is_on_the_page() -> None:
    headings = {
        line[4:] for line in python_api.write_reference().splitlines() if line.startswith("### ")
    }
    assert headings == {name for name in dir(ot) if not name.startswith("_")}


# What `import ortune` offers.


NAMES = [name for name in dir(ortune) if not name.startswith("_")]


def test_no_public_name_is_also_a_folder() -> None:
    folders = {info.name for info in pkgutil.iter_modules(ortune.__path__)}
    assert not folders & set(NAMES), "folders are nouns, public functions are verbs"


def test_every_public_name_resolves_and_stays() -> None:
    assert len(NAMES) > 20
    for name in (*NAMES, *NAMES):
        assert getattr(ortune, name).__module__.startswith("ortune.")
    assert set(NAMES) <= set(dir(ortune))
