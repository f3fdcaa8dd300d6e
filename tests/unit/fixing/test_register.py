"""Every fix that names an option, a verb or a command is followed, or it is said why it is not."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.unit.fixing.kit import SITUATIONS
from tests.unit.fixing.sites import list_sites
from tests.unit.fixing.test_commands import COMMANDS

HERE = Path(__file__).parent


def read_reasons() -> dict[str, str]:
    """Return site -> why no test follows its fix."""
    lines = (HERE / "unfollowed.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(": ", 1) for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def test_every_fix_is_followed_or_it_is_said_why_not() -> None:
    for path in HERE.glob("test_*.py"):
        importlib.import_module(f"{__package__}.{path.stem}")
    followed = {case.site for case in COMMANDS.values()} - {"-"}
    followed |= {one.site for module in SITUATIONS.values() for one in module.values()}
    reasons, sites = read_reasons(), set(list_sites())
    assert not (found := sorted(sites - followed - set(reasons))), f"not followed: {found}"
    assert not (found := sorted((followed | set(reasons)) - sites)), f"no such site: {found}"
    assert not (found := sorted(followed & set(reasons))), f"followed all the same: {found}"
