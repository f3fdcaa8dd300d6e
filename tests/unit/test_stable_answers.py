"""What the command line answers is what it answered before the source tree was cut and renamed.

The fixtures are in tests/fixtures/stable_answers; tests/fixtures/make_stable_answers.py says what
they hold and wrote them at the last tree before. Sentences (notes, reasons, errors) are no part
of them: only that an error has two lines. A difference is printed as a diff.

Allowed, and recorded again in the same commit with the reason in its message:

- a verb, option or target that goes or gets another word: change `VERBS` or `TARGETS`, and
  remove the fixture of what went; the fixture of what has another word stays equal;
- a key that is new in an answer; a file or bytes of a package that follow from a new release of
  a library, or from a text in it;
- a winner on a table with more regret, where the decision says what was gained for it;
- a setting that goes: `read_settings` must show that its old files are refused in two lines.

Not allowed: keys, types, plans, keys of trials, digests, counts, exit codes and scores that differ
because code was moved, merged or renamed.

    PYTHONPATH=src:. python -m tests.fixtures.make_stable_answers NAME

records one again. Verbs that time for long are marked `long`; processors without VNNI give other
answers of 8-bit models, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import make_stable_answers as stable

LONG = {"demo", "doctor", "export", "package-ort-mobile", "replays-180", "sensitivity",
        "timeline", "tune"}  # fmt: skip
CPU_FLAGS = Path("/proc/cpuinfo")

pytestmark = pytest.mark.skipif(
    not CPU_FLAGS.exists() or "vnni" not in CPU_FLAGS.read_text(),
    reason="recorded on a processor with VNNI",
)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with stable.workplace() as folder:
        yield folder


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in stable.names()]
)
def test_it_answers_as_it_did(root: Path, name: str) -> None:
    difference = stable.compare(name, stable.produce(name, root))
    assert not difference, f"{name} differs from what was recorded\n{difference}"


def test_every_fixture_is_compared() -> None:
    assert {path.stem for path in stable.HOME.glob("*.json")} == set(stable.names())


def test_a_difference_is_shown_and_a_measurement_is_none() -> None:
    recorded = {"kept": [1, 2.0], "latency_ns": "<number>", "rows": ["<each>", "<null>"]}
    same = {"kept": [1, 2.001], "latency_ns": "<null>", "rows": ["<each>", {"plan": "<text>"}]}
    assert stable.align(recorded, same) == recorded
    for other in ({**recorded, "kept": [2, 2.0]}, {**recorded, "new": 1}, {"kept": [1, 2.0]}):
        assert stable.align(recorded, other) != recorded
