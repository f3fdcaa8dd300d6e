"""Fixes that two or three commands show: the refused one, and that which the fix says.

`commands.txt` lists them: the site of a fix, below it a command that is refused, and below that
what its fix says: commands, the last of which is looked at. Words in capitals are files of
`kit.FILES`. Where the work behind it would be long the followed command ends at the next thing
amiss: a file that is there already (D), or is of no use (X). Below a dash stand fixes that are put
together where `sites` does not find them.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.fixing.kit import check_site, prepare, recording, run, save_text
from tests.unit.fixing.sites import VERB
from tests.unit.test_fixes import OPTION, list_options


class Followed(NamedTuple):
    """A command that is refused, and those that its fix says."""

    site: str
    refused: str
    before: list[str]
    last: str


def read_commands() -> dict[str, Followed]:
    """Return refused command -> what is followed."""
    lines = Path(__file__).with_name("commands.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, Followed] = {}
    site = refused = ""
    for line in lines:
        text = line.strip()
        if line.startswith(" " * 8):
            *before, last = text.split("; ")
            found[refused] = Followed(site, refused, before, last)
        elif line.startswith(" "):
            assert text not in found, text
            refused = text
        else:
            site = text
    return found


COMMANDS = read_commands()


def list_changes(refused: str, followed: str) -> set[str]:
    """Return the options that only one of two commands has, or has with another value."""
    before, after = refused.split(" --"), followed.split(" --")
    return {f"--{part.split()[0]}" for part in {*before[1:]} ^ {*after[1:]}}


@pytest.mark.parametrize("refused", COMMANDS)
def test_what_a_fix_says_changes_the_situation(refused: str, tmp_path: Path) -> None:
    site, _, before, last = COMMANDS[refused]
    with prepare(tmp_path, refused, *before, last) as places:
        with recording() as raised:
            code, what, fix = run(refused, places)
        done = {option for text in (*before, last) for option in list_changes(refused, text)}
        verbs = {text.split()[0] for text in (*before, last)}
        said = set(OPTION.findall(fix)) | {verb for verb, _ in VERB.findall(fix)}
        assert code == 2 and (done | verbs) & said, fix
        if site != "-":
            check_site(site, fix, raised)
        for text in before:
            assert run(text, places)[0] == 0, text
        code, otherwise, _ = run(last, places)
    assert code == 0 or otherwise != what, otherwise


def test_followed_commands_have_the_options_of_their_verbs() -> None:
    """A fix that names an option of another verb would change the situation too."""
    options = list_options()
    for case in COMMANDS.values():
        for text in (*case.before, case.last):
            verb, *words = shlex.split(text)
            assert {word for word in words if word.startswith("--")} <= options[verb], text


def test_no_option_is_advised_where_none_helps(tmp_path: Path) -> None:
    """None makes a file load whose source does not, what dies at once live, one layer two."""
    function = "import os\ndef judge(*_, **__): os._exit(3)\n"
    with prepare(tmp_path, "UNLOADED M NEW D O") as places:
        places["E"] = f"{save_text(tmp_path / 'e.py', function)}:judge"
        for refused in (
            "convert UNLOADED NEW --precision fp16",
            "verify M M --evaluate E",
            "apply M int8-static qoperator --data D -o O",
        ):
            code, _, fix = run(refused, places)
            assert code == 2 and not set(OPTION.findall(fix)), fix
