"""Change the modules that decide in small ways, and see whether a test notices.

    make mutants
    python -m tools.mutants [--module core/study.py] [--seconds N] [--survivors] [--sample N]
                            [--hand] [--again] [--jobs N]

Outcomes go to benchmarks/results/mutants.json, module by module; a module whose text, tests and
mutations are those of the last run is not run again. A run that is stopped, or is given
`--seconds`, goes on where it ended. Exit status 1: a mutation made by hand survived, fewer than
90 % died, a survivor is not in `accepted.toml` with its reason, or edits are left to try.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.mutants import plan, trials
from tools.mutants.edit import Mutant, lines_of
from tools.mutants.journal import Journal

RESULTS = plan.ROOT / "benchmarks" / "results" / "mutants.json"
WANTED = 0.9
WORDS = ("killed", "timed out", "survived")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the exit status."""
    asked = _arguments(argv)
    known = {name: one["digest"] for name, one in _kept().items()}
    trials.prepare()
    memory = Path("/dev/shm")
    until = time.monotonic() + asked.seconds
    with tempfile.TemporaryDirectory(
        prefix="mutants-", dir=memory if memory.is_dir() else None
    ) as folder:
        copies = trials.Copies(Path(folder), asked.jobs)
        for module in plan.modules():
            done = known.get(module.path) == _digest(module) and not asked.again
            if done or asked.module not in ("", module.path):
                continue
            if asked.sample > 1 or asked.hand:
                edits = [] if asked.hand else plan.edits(module)[:: asked.sample]
                print(_told(module, _tried(module, copies, edits))["hand"], flush=True)
            elif time.monotonic() >= until or _recorded(module, copies, asked.survivors, until):
                return 1
    if asked.sample > 1 or asked.hand:
        return 0
    found = _kept()
    _write(found)  # with reasons that were given since
    return _verdict(found)


def _recorded(module: plan.Module, copies: trials.Copies, survivors: bool, until: float) -> int:
    """Try a module's edits and write down what became of them; return how many are left."""
    digest = _digest(module)
    journal = Journal(digest, module)
    if survivors:
        journal.take_over(_kept().get(module.path, {}))
    tried = _tried(module, copies, plan.edits(module), journal, until)
    told = _told(module, tried)
    left = len(plan.edits(module)) + len(_by_hand(module)) - len(tried)
    counts = ", ".join(f"{word} {told[word]}" for word in WORDS)
    print(f"{module.path}: {counts}, left {left}", flush=True)
    if not left:
        row = {"digest": digest, "source": module.source_digest(), **told}
        _write(_kept() | {module.path: row})  # read anew: another run may have added to it
        journal.close()
    return left


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--module", default="", help="one of modules.toml")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="start nothing after these; go on next time",
    )
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="near tests were only added since the last run: what died stays dead",
    )
    parser.add_argument("--sample", type=int, default=1, help="every Nth edit; nothing is kept")
    parser.add_argument("--hand", action="store_true", help="those made by hand; nothing is kept")
    parser.add_argument("--again", action="store_true", help="also what is known")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args(argv)


def _digest(module: plan.Module) -> str:
    made = [str(edit) for _, edit in plan.by_hand() if edit.path == module.path]
    return plan.digest(module.digest(), *made)


def _tried(
    module: plan.Module,
    copies: trials.Copies,
    edits: Sequence[Mutant],
    journal: Journal | None = None,
    until: float = math.inf,
) -> dict[Mutant, str]:
    """Try edits of a module, those made by hand first; return what became of them."""
    near = trials.measure(module, copies, journal.near if journal else None)
    source = module.source()

    def chosen(edit: Mutant) -> tuple[list[str], float]:
        tests = near.of(lines_of(edit, source))
        return tests, sum(near.seconds[test] for test in tests)

    every = [*_by_hand(module), *edits]
    found = {edit: word for edit in every if journal and (word := journal.of(edit))}
    waiting = [edit for edit in every if edit not in found]
    for edit, word in trials.outcomes(waiting, chosen, copies, until):
        found[edit] = word
        if journal:
            journal.add(edit, word)
        if word == "survived":
            print(f"{edit.path}:{edit.line} {edit.where}\n  - {edit.was}\n  + {edit.becomes}")
    return found


def _by_hand(module: plan.Module) -> dict[Mutant, str]:
    return {edit: name for name, edit in plan.by_hand() if edit.path == module.path}


def _told(module: plan.Module, found: dict[Mutant, str]) -> dict[str, Any]:
    """Sum up what became of a module's edits."""
    hand = _by_hand(module)
    made = {hand[edit]: word for edit, word in found.items() if edit in hand}
    words = [word for edit, word in found.items() if edit not in hand]
    counts = {word: words.count(word) for word in WORDS}
    alive = [e for e, word in found.items() if word == "survived" and e not in hand]
    alive.sort(key=lambda edit: edit.span)
    rows = [
        {"line": edit.line, "where": edit.where, "was": edit.was, "becomes": edit.becomes}
        for edit in alive
    ]
    return {**counts, "hand": made, "survivors": _explained(module.path, rows)}


def _explained(path: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return survivors with the reasons why they are accepted, empty where there is none."""
    found = []
    for row in rows:
        told = {name: row[name] for name in ("where", "was", "becomes")}
        fits = (one.why for one in plan.accepted() if one.matches(path, **told))
        found.append({**row, "accepted": next(fits, "")})
    return found


def _kept() -> dict[str, Any]:
    """Return the results there are: path -> what became of the module's edits."""
    if not RESULTS.is_file():
        return {}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["modules"]
    known = {module.path for module in plan.modules()}
    return {
        path: {**one, "survivors": _explained(path, one["survivors"])}
        for path, one in found.items()
        if path in known
    }


def _write(found: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(_summed(found), indent=1) + "\n", encoding="utf-8")


def _summed(found: dict[str, Any]) -> dict[str, Any]:
    """Return the file's content: the sums, then the modules."""
    sums = {word: sum(m[word] for m in found.values()) for word in ("killed", "timed out")}
    survived = sum(m["survived"] for m in found.values())
    made = [word for m in found.values() for word in m["hand"].values()]
    total = sum(sums.values()) + survived
    return {
        **sums,
        "survived": survived,
        "share that died": round(1 - survived / max(total, 1), 4),
        "made by hand": {"tried": len(made), "survived": made.count("survived")},
        "modules": {path: found[path] for path in sorted(found)},
    }


def _verdict(found: dict[str, Any]) -> int:
    """Print what is wrong; return the exit status."""
    sums = _summed(found)
    alive = [n for m in found.values() for n, word in m["hand"].items() if word == "survived"]
    open_ = sum(not row["accepted"] for m in found.values() for row in m["survivors"])
    print(
        f"{sums['share that died']:.1%} died; without a reason survived {open_}; by hand: {alive}"
    )
    return int(bool(alive) or open_ > 0 or sums["share that died"] < WANTED)


if __name__ == "__main__":
    sys.exit(main())
