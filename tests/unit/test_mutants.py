"""The mutation tool knows the sources as they are, and its edits are what they claim to be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tools.mutants import plan
from tools.mutants.edit import joined, lines_of
from tools.mutants.journal import Journal
from tools.mutants.operators import mutants

MODULES = {module.path: module for module in plan.modules()}
SOURCE = b'''"""Doc, 1 + 1."""
LIMIT: float = 0.5

@cached(1)
def f(a: int = 3, *, b=False) -> bool:
    """Doc."""
    if a < LIMIT and not b:
        raise Wrong("a < 1", fix=str(2 + 2))
    store.append(a)
    return max(a, b, key=1) == f"{1 + 1}"

def shown():
    return 1 + 1
'''


def test_modules_and_their_tests_are_there() -> None:
    for module in MODULES.values():
        assert (plan.ROOT / plan.SOURCES / module.path).is_file(), module.path
        for name in module.tests:
            assert (plan.ROOT / name).exists(), name
        tree = ast.parse(module.source())
        names = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        assert {name.rpartition(".")[2] for name in module.skip} <= names, module.path
        assert bool(module.skip) is bool(module.why)


def test_every_survivor_that_is_accepted_is_a_mutant_and_has_a_reason() -> None:
    found = {path: plan.edits(module) for path, module in MODULES.items()}
    for one in plan.accepted():
        assert any(one.matches(m.path, m.where, m.was, m.becomes) for m in found[one.path]), one
        assert one.why


def test_mutations_made_by_hand_fit_the_sources() -> None:
    made = dict(plan.by_hand())
    assert len(made) >= 33
    for name, edit in made.items():
        assert edit.path in MODULES, name
        changed = edit.apply(MODULES[edit.path].source())
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(MODULES[edit.path].source()))


def test_edits_are_small_and_leave_texts_annotations_and_decorators() -> None:
    found = [(one.was, one.becomes) for one in mutants("m", SOURCE, ["shown"])]
    define = "def f(a: int = 3, *, b=False) -> bool:"
    test = "if a < LIMIT and not b:"
    answer = 'return max(a, b, key=1) == f"{1 + 1}"'
    assert set(found) == {
        ("LIMIT: float = 0.5", "LIMIT: float = 1.0"),
        (define, define.replace("3", "4")),
        (define, define.replace("False", "True")),
        (test, test.replace("<", "<=")),
        (test, test.replace("<", ">=")),
        (test, test.replace("a < LIMIT", "True")),
        (test, test.replace("not b", "True")),
        (test, test.replace("not b", "b")),
        (test, "if (a < LIMIT or not b):"),
        ('raise Wrong("a < 1", fix=str(2 + 2))', "pass"),
        ("store.append(a)", "pass"),
        (answer, "return None"),
        (answer, answer.replace("==", "!=")),
        (answer, answer.replace("max", "min")),
        (answer, answer.replace("key=1", "")),
        (answer, answer.replace("key=1", "key=2")),
    }
    assert len(found) == len(set(found))


@pytest.mark.parametrize("path", MODULES)
def test_an_edit_changes_what_it_says(path: str) -> None:
    source = MODULES[path].source()
    lines = source.decode().splitlines()
    for one in plan.edits(MODULES[path])[::7]:
        touched = [lines[at - 1] for at in lines_of(one, source)]
        assert one.was == joined(" ".join(touched))
        assert one.was != one.becomes


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    module = MODULES["core/acceptance.py"]
    first, second, *_ = plan.edits(module)
    Journal("digest", module, tmp_path).add(first, "survived")
    again = Journal("digest", module, tmp_path)
    assert (again.of(first), again.of(second)) == ("survived", None)
    assert Journal("other", module, tmp_path).of(first) is None
    again.close()
    assert Journal("digest", module, tmp_path).of(first) is None


def test_where_tests_were_added_only_survivors_are_tried_again(tmp_path: Path) -> None:
    module = MODULES["core/acceptance.py"]
    first, *others = plan.edits(module)
    row = {"where": first.where, "was": first.was, "becomes": first.becomes}
    last = {"source": module.source_digest(), "survivors": [row]}
    journal = Journal("digest", module, tmp_path)
    journal.take_over(last | {"source": "as it was"})
    assert {journal.of(edit) for edit in others} == {None}
    journal.take_over(last)
    assert journal.of(first) is None
    assert {journal.of(edit) for edit in others} == {"killed"}
