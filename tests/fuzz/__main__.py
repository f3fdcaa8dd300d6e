"""Fuzz the readers, in the open: findings are written down, and a run that was stopped goes on.

    make fuzz                              FUZZ_SEED=16 FUZZ_COUNT=20000
    python -m tests.fuzz [TARGET ...] [--seed N] [--count N] [--seconds S] [--out FOLDER]
                         [--record FILE]                    counts of each target, as JSON
    python -m tests.fuzz TARGET --seed N --input I          one input, with its stack

Exit status 1: something was found, and is not mended.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz import targets
from tests.fuzz.target import Target
from tests.fuzz.watch import Finding, watch

SEED, COUNT = 16, 20_000
_KEPT = 3
"""Inputs that are written down of all that hit one place."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit status."""
    asked = _arguments(argv)
    chosen = [targets.TARGETS[name] for name in asked.targets or targets.READERS]
    if asked.input is not None:
        return _again(chosen[0], asked.seed, asked.input, asked.out)
    until = time.monotonic() + asked.seconds
    states = {one.name: _run(one, asked.seed, asked.count, asked.out, until) for one in chosen}
    if asked.record is not None:
        before = json.loads(asked.record.read_text()) if asked.record.is_file() else {}
        asked.record.write_text(json.dumps(before | states, indent=1) + "\n")
    return int(any(one["open"] for state in states.values() for one in state["found"].values()))


def _run(target: Target, seed: int, count: int, out: Path, until: float) -> dict[str, Any]:
    """Go on where the last run of this seed ended; return what was seen of it in all.

    What was found before is tried again first, so that it is known what is mended.
    """
    journal = out / "counts" / f"{target.name}-{seed}.json"
    state: dict[str, Any] = {"seed": seed, "done": 0, "seconds": 0.0, "found": {}}
    state |= {"slowest": [0, 0], "largest": [0, 0]}
    if journal.is_file():
        state = json.loads(journal.read_text())
    began, first, found = time.monotonic(), state["done"], state["found"]
    for one in found.values():
        one["open"] = any(seen.finding for seen in watch(target, seed, one["kept"]))
    for seen in watch(target, seed, range(first, count)):
        state["done"] = seen.index + 1
        state["slowest"] = max(state["slowest"], [round(seen.seconds, 3), seen.index])
        state["largest"] = max(state["largest"], [seen.bytes, seen.index])
        if (finding := seen.finding) is not None:
            place = f"{finding.kind}: {finding.where}"
            one = found.setdefault(place, {"seen": 0, "kept": []})
            one |= {"seen": one["seen"] + 1, "open": True}
            if len(one["kept"]) < _KEPT:
                one["kept"].append(finding.index)
                _write(target, seed, finding, out)
        if state["done"] % 1000 == 0:
            sys.stderr.write(f"{target.name}: {state['done']}\n")
        if time.monotonic() >= until:
            break
    took = time.monotonic() - began
    state["seconds"] = round(state["seconds"] + took, 1)
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text(json.dumps(state, indent=1))
    sys.stdout.write(f"{target.name}: {state['done']} of {count} inputs, seed {seed}, ")
    sys.stdout.write(f"{state['done'] - first} now in {took:.0f} s, {len(found)} findings\n")
    for place, one in found.items():
        still = "open" if one["open"] else "mended"
        sys.stdout.write(f"  {one['seen']:6}  {place} ({still})\n")
    (slow, late), (most, large) = state["slowest"], state["largest"]
    sys.stdout.write(f"  slowest {slow:.1f} s (input {late}), ")
    sys.stdout.write(f"largest {most / 1e6:.0f} MB (input {large})\n")
    sys.stdout.flush()
    return state


def _write(target: Target, seed: int, finding: Finding, out: Path) -> None:
    """Keep an input beside what it did and the command that repeats it."""
    folder = out / "findings" / f"{target.name}-{seed}-{finding.index}"
    case = target.case(seed, finding.index)
    folder.mkdir(parents=True, exist_ok=True)
    case.write(folder / "input")
    command = f"python -m tests.fuzz {target.name} --seed {seed} --input {finding.index}"
    words = [word if len(word) < 1000 else f"{word[:1000]}..." for word in case.words]
    text = (
        f"{command}\n{finding.kind}: {finding.where}\n{case.name}\n{words!r}\n\n{finding.text}\n"
    )
    (folder / "what.txt").write_text(text, encoding="utf-8", errors="backslashreplace")


def _again(target: Target, seed: int, index: int, out: Path) -> int:
    """Run one input, keep it, and show what it does."""
    case = target.case(seed, index)
    sys.stdout.write(f"{case.name}: {case.size} bytes in {list(case.files)}\n")
    sys.stdout.write(f"{[ascii(word)[:200] for word in case.words]}\n")
    found = next(iter(watch(target, seed, [index]))).finding
    if found is None:
        sys.stdout.write("nothing is wrong\n")
        return 0
    _write(target, seed, found, out)
    text = f"{found.kind}: {found.where}\n{found.text}\n"
    sys.stdout.write(text.encode("ascii", "backslashreplace").decode())
    return 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*targets.TARGETS, []])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--input", type=int)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--record", type=Path)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
