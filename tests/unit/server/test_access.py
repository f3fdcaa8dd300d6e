"""Tokens: who is let in, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.core.errors import BadSettings
from ortune.server.access import Access, access

TOKEN = "c0ffee" * 5


def written(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def read(path: Path | None) -> tuple[Access, list[str]]:
    said: list[str] = []
    return access(path, said.append), said


@pytest.mark.parametrize("header", [None, "", "nonsense", f"Bearer {TOKEN}"])
def test_without_tokens_everybody_may_ask(header: str | None) -> None:
    found, said = read(None)
    assert found.open and found.allows(header) and not said


def test_every_token_of_the_file_is_taken_and_nothing_else(tmp_path: Path) -> None:
    other = "deadbeef-deadbeef"
    found, said = read(written(tmp_path / "tokens", f"# new\n{TOKEN}\n\n {other} \n"))
    assert not found.open and not said
    for token in (TOKEN, other):
        assert found.allows(f"Bearer {token}") and found.allows(f"bearer  {token}")
    for header in (
        None,
        "",
        "Bearer",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        "Bearer é\ud800",
    ):
        assert not found.allows(header), header


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no token"),
        ("# only\n\n", "has no token"),
        ("short\n", "line 1 is no token"),
        (f"{TOKEN}\nwith a space in it\n", "line 2 is no token"),
        (f"{TOKEN}\x00\n", "line 1 is no token"),
        (b"\xff\xfe", "no plain text"),
        ("x" * 70000, "larger than"),
    ],
)
def test_what_is_no_file_of_tokens_is_refused_and_not_told(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    with pytest.raises(BadSettings, match=words) as caught:
        read(written(tmp_path / "tokens", text))
    assert "with a space" not in str(caught.value) and "short" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="No such file"):
        read(tmp_path / "none")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o602, 1)])
def test_what_everybody_may_read_is_warned_of(tmp_path: Path, mode: int, warned: int) -> None:
    found, said = read(written(tmp_path / "tokens", TOKEN, mode))
    assert len(said) == warned and found.allows(f"Bearer {TOKEN}")
    assert TOKEN not in "".join(said)
