"""The page's table of rules is the one that the code follows."""

from __future__ import annotations

from pathlib import Path

from ortune.quantizers.common.qdq.runtime_rules import RULES, TARGETS, Treatment

PAGE = Path(__file__).parents[5] / "docs" / "quantizing.md"
WORDS = {"integer", "stored", "joined", "moves", "float", "lossy", "-"}


def test_the_page_shows_every_row() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    shown: dict[tuple[str, str], str] = {}
    for line in lines:
        ops, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(TARGETS) and set(cells) <= WORDS:
            for op in ops.split(", "):
                shown |= {(op, t): cell for t, cell in zip(TARGETS, cells, strict=True)}
    plain = {
        (r.op, r.provider): r.treatment.name.lower()
        for r in RULES
        if not r.case
        and r.op != "*"
        and r.treatment in (Treatment.INTEGER, Treatment.JOINED, *OTHERS)
    }
    assert {key: cell for key, cell in shown.items() if cell != "-"} == plain
    besides = [r for r in RULES if r.case or r.op == "*"]
    text = "\n".join(lines)
    missing = [r for r in besides if r.treatment.value not in text or r.source not in text]
    assert besides
    assert not missing


OTHERS = (Treatment.STORED, Treatment.MOVES, Treatment.FLOAT, Treatment.LOSSY)
