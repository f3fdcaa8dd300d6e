"""Change the modules that decide in small ways, and see whether a test notices.

    make mutants
    python -m tools.mutants [--module core/study.py] [--sample N] [--hand] [--again] [--jobs N]

Outcomes go to benchmarks/results/mutants.json, module by module; a module whose text, tests and
mutations are those of the last run is not run again. Exit status 1: a mutation made by hand
survived, fewer than 90 % died, or a survivor is not in `accepted.toml` with its reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.mutants import plan, trials
from tools.mutants.edit import Mutant, lines_of

RESULTS = plan.ROOT / "benchmarks" / "results" / "mutants.json"
WANTED = 0.9


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the exit status."""
    asked = _arguments(argv)
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    found: dict[str, Any] = kept.setdefault("modules", {})
    known = {module.path: module for module in plan.modules()}
    for gone in set(found) - set(known):
        del found[gone]
    trials.prepare()
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=where) as folder:
        copies = trials.Copies(Path(folder), asked.jobs)
        for path, module in known.items():
            digest = _digest(module)
            done = found.get(path, {}).get("digest") == digest and not asked.again
            if done or asked.module not in ("", path):
                continue
            told = _module(
                module, copies, [] if asked.hand else plan.edits(module)[:: asked.sample]
            )
            if asked.sample > 1 or asked.hand:
                print(told["hand"], flush=True)
                continue
            found[path] = {"digest": digest, **told}
            RESULTS.write_text(json.dumps(_summed(kept), indent=1) + "\n", encoding="utf-8")
    return 0 if asked.sample > 1 or asked.hand else _verdict(found)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--module", default="", help="one of modules.toml")
    parser.add_argument("--sample", type=int, default=1, help="every Nth edit; nothing is kept")
    parser.add_argument("--hand", action="store_true", help="those made by hand; nothing is kept")
    parser.add_argument("--again", action="store_true", help="also what is known")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args(argv)


def _digest(module: plan.Module) -> str:
    made = [str(edit) for _, edit in plan.by_hand() if edit.path == module.path]
    return plan.digest(module.digest(), *made)


def _module(module: plan.Module, copies: trials.Copies, edits: Sequence[Mutant]) -> dict[str, Any]:
    """Try edits of a module, those made by hand first, and say what became of them."""
    began = time.monotonic()
    near = trials.measure(module, copies)
    source = module.source()

    def chosen(edit: Mutant) -> tuple[list[str], float]:
        tests = near.of(lines_of(edit, source))
        return tests, sum(near.seconds[test] for test in tests)

    hand = {edit: name for name, edit in plan.by_hand() if edit.path == module.path}
    counts = {"killed": 0, "timed out": 0, "survived": 0}
    survivors, made = [], {}
    for edit, word in trials.outcomes([*hand, *edits], chosen, copies):
        if edit in hand:
            made[hand[edit]] = word
        else:
            counts[word] += 1
            if word == "survived":
                survivors.append(edit)
        if word == "survived":
            print(f"{edit.path}:{edit.line} {edit.where}\n  - {edit.was}\n  + {edit.becomes}")
    survivors.sort(key=lambda edit: edit.span)
    seconds = round(time.monotonic() - began)
    print(f"{module.path}: {counts}, {seconds} s", flush=True)
    return {**counts, "seconds": seconds, "hand": made, "survivors": [_row(s) for s in survivors]}


def _row(edit: Mutant) -> dict[str, Any]:
    """Return a survivor as a difference, with the reason where it is accepted."""
    told = {"where": edit.where, "was": edit.was, "becomes": edit.becomes}
    fits = (one.why for one in plan.accepted() if one.matches(edit.path, **told))
    return {"line": edit.line, **told, "accepted": next(fits, "")}


def _summed(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the file's content: the sums, then the modules."""
    found = kept["modules"]
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
    sums = _summed({"modules": found})
    alive = [n for m in found.values() for n, word in m["hand"].items() if word == "survived"]
    known = plan.accepted()
    open_ = 0
    for path, module in found.items():
        for row in module["survivors"]:
            told = {name: row[name] for name in ("where", "was", "becomes")}
            open_ += not any(one.matches(path, **told) for one in known)
    print(
        f"{sums['share that died']:.1%} died; without a reason survived {open_}; by hand: {alive}"
    )
    return int(bool(alive) or open_ > 0 or sums["share that died"] < WANTED)


if __name__ == "__main__":
    sys.exit(main())
