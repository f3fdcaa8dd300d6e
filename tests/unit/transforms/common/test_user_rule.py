"""Rules in a Python file of the user's: every step of theirs is a transaction like any other."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.unit.rewriting import model_of, normal, ops, transformed

from ortune.cli.main import main
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings, Refused, UnknownPlugin
from ortune.core.plugins import codec, spelling
from ortune.core.plugins.catalog import BASES, base_of, load_plugin
from ortune.core.reading import read_step
from ortune.core.step import Edit, Recipe, Transform
from ortune.graph.ir.edit import take_notes
from ortune.search.recipe.built import steps_key
from ortune.transforms.common.user_rule import replace_matches

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,8] x) => (float[n,8] y) <float[8] b = {0,1,2,3,4,5,6,7}> {
  a = Add(x, b)
  s = Sigmoid(a)
  m = Mul(s, a)
  t = Sigmoid(m)
  u = Mul(m, t)
  y = Relu(u)
}"""

RULES = '''
import ortune as ot


def swish(op, x):
    return op.Mul(x, op.Sigmoid(x))


def spelled(op, x):
    """SiLU by Exp."""
    return op.Div(x, op.Add(op.Exp(op.Neg(x)), op.Constant(value_float=1.0)))


def hard(op, x):
    return op.HardSigmoid(x)


def unknown(op, x):
    return op.NoSuchOp(x)


def failing(op, x):
    raise ValueError("oh no")


def after_add(x, match):
    assert len(match.nodes) == 2
    node = x.producer()
    return True if node is not None and node.op_type == "Add" else "nothing is added before"


def never(**bound):
    return sorted(bound) != ["match", "x"]


unfuse = ot.rule(swish, spelled)
after = ot.rule(swish, spelled, after_add)
not_at_all = ot.rule(swish, spelled, never)
wrong = ot.rule(swish, hard)
no_such = ot.rule(swish, unknown)
raises = ot.rule(swish, failing)
raises_early = ot.rule(failing, spelled)
newer = ot.rule(swish, lambda op, x: op.Swish(x), needs_opset=24)
number = 3


class Scaled(ot.Transform):
    """Abstract: no apply."""


from dataclasses import dataclass


@dataclass(frozen=True)
class Renamed(ot.Transform):
    """Give every node a prefix.

    Attributes:
        prefix: What is put before.
    """

    stage = ot.Stage.FINISH
    prefix: str = "own_"

    def apply(self, model):
        for node in model.graph:
            node.name = self.prefix + (node.name or "")
        return len(model.graph)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rules.py").write_text(RULES, encoding="utf-8")
    onnx.save(onnx.parser.parse_model(MODEL), "m.onnx")
    return tmp_path


def edit_of(capsys: pytest.CaptureFixture[str], *steps: str) -> Edit:
    """Apply steps on the command line and return the last edit."""
    code = main(["apply", "m.onnx", *steps, "-o", "out.onnx", "--force", "--json"])
    found = json.loads(capsys.readouterr().out)["edits"]
    assert code == (0 if all(one["kept"] for one in found) else 1)
    return codec.decode(Edit, found[-1])


def test_a_rule_is_a_step(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = edit_of(capsys, "simplify", "./rules.py:unfuse")
    assert (done.step, done.count, done.kept) == ("./rules.py:unfuse", 2, True)
    operators = [node.op_type for node in onnx.load("out.onnx").graph.node]
    assert operators.count("Exp") == 2 and "Sigmoid" not in operators


def test_it_keeps_what_the_model_computes(here: Path) -> None:
    feeds = [{"x": normal(n, 8, seed=n)} for n in (0, 1, 3)]
    rule = spelling.parse_plugin(Transform, "./rules.py:unfuse")
    after, count = transformed(MODEL, rule, feeds, may_grow=True)
    assert count == 2 and ops(after)["Div"] == 2


def test_what_the_check_leaves_alone_is_said(here: Path) -> None:
    for name, count, note in (
        ("after", 1, "1 left alone, nothing is added before: "),
        ("not_at_all", 0, "2 left alone, rejected by never: "),
    ):
        model = model_of(MODEL)
        assert read_step(f"rules.py:{name}").apply(model) == count  # type: ignore[call-arg]
        assert take_notes(model).startswith(note)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong", "rolled back: outputs differ"),
        ("no_such", "No Op registered for NoSuchOp"),
        ("raises", "rules.py line 23: ValueError: oh no"),
        ("raises_early", "rules.py line 23: ValueError: oh no"),
        ("newer", "it writes for opset 24, and the model is of 17"),
    ],
)
def test_a_bad_rule_is_rolled_back(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    done = edit_of(capsys, f"./rules.py:{name}")
    assert not done.kept and done.count == 0
    assert said in done.note
    assert [n.op_type for n in onnx.load("out.onnx").graph.node][1] == "Sigmoid"


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("nofile.py:x", "no file 'nofile.py'", "./my_rules.py:NAME"),
        ("rules.py", "the transform in it is not named", "rules.py:unfuse"),
        ("rules.py:unfus", "rules.py has no 'unfus'", "write rules.py:unfuse"),
        ("rules.py:number", "'number' in rules.py is not a transform", "rules.py:unfuse"),
        ("rules.py:Scaled", "does not define apply", "give it apply"),
        ("rules.py:unfuse(x=1)", "has no field 'x'", "it has none"),
        ("rules.py:Renamed(prefix=3)", "3 is not a str", "give a str"),
        ("syntax.py:x", "syntax.py line 2: SyntaxError", "correct the file"),
        ("imports.py:x", "imports.py line 1: ModuleNotFoundError", "correct the file"),
        ("leaves.py:x", "leaves.py line 1: SystemExit", "correct the file"),
        ("empty.py:x", "empty.py has no 'x'", "ortune.rule(pattern, rewrite)"),
    ],
)
def test_wrong_words_give_two_lines(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, what: str, fix: str
) -> None:
    Path("syntax.py").write_text("y = 1\nx = (\n")
    Path("imports.py").write_text("import no_such_module\n")
    Path("leaves.py").write_text("raise SystemExit(3)\n")
    Path("empty.py").write_text("")
    assert main(["apply", "m.onnx", text, "-o", "out.onnx"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert what in said[0] and said[1].startswith("  fix: ") and fix in said[1]
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize("folder", sorted(BASES.keys() - {"transforms", "quantizers"}))
def test_only_steps_are_read_from_files(folder: str) -> None:
    """A worker, which trusts no file that is named to it, could not run another kind."""
    with pytest.raises(UnknownPlugin, match="only steps are") as caught:
        load_plugin(base_of(folder), "rules.py:Renamed")
    assert "ortune.plugins" in caught.value.fix


def test_a_class_of_its_own_has_fields(here: Path) -> None:
    made, model = read_step("./rules.py:Renamed(prefix=mine)"), model_of(MODEL)
    assert str(made) == "./rules.py:Renamed(prefix=mine)"
    assert made.apply(model) == 6  # type: ignore[call-arg]
    assert all(str(node.name).startswith("mine") for node in model.graph)


@pytest.mark.parametrize(
    "text",
    [
        *("rules.py:unfuse", "./rules.py:unfuse", "../{}/rules.py:unfuse"),
        "rules.py:Renamed(prefix=mine)",
    ],
)
def test_the_spelling_survives(here: Path, text: str) -> None:
    text = text.format(here.name)
    made = read_step(text)
    assert str(made) == text and spelling.parse_plugin(Transform, str(made)) == made
    again = codec.decode(Recipe, json.loads(json.dumps(codec.encode(Recipe("r", (made,))))))
    assert str(again.steps[0]) == text
    assert codec.encode(again.steps[0]) == codec.encode(made)
    assert isinstance(again.steps[0], Transform)


def test_stored_steps_run_no_code(here: Path) -> None:
    """A bundle or a ledger names a file: reading it must not run that file."""
    Path("loud.py").write_text("raise RuntimeError('run')")
    stored = {"name": "r", "steps": [{"is": "transforms/./loud.py:x"}]}
    found = codec.decode(Recipe, stored).steps[0]
    assert str(found) == "./loud.py:x"
    with pytest.raises(Refused, match="its code is missing"):
        found.apply(model_of(MODEL))  # type: ignore[call-arg]
    with pytest.raises(BadSettings, match="RuntimeError: run"):
        read_step("./loud.py:x")


def test_another_text_is_another_step(here: Path) -> None:
    before = read_step("rules.py:unfuse")
    Path("rules.py").write_text(RULES.replace('"""SiLU by Exp."""', '"""Edited."""'))
    after = read_step("rules.py:unfuse")
    assert str(before) == str(after)
    assert steps_key([before]) != steps_key([after])
    assert steps_key([after]) == steps_key([read_step("rules.py:unfuse")])


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_the_rules.py").write_text("def p(op, x):\n    return op.Relu(x)\n")
    (tmp_path / "rules.py").write_text(
        "import ortune as ot\nfrom beside_the_rules import p\nown = ot.rule(p, lambda op, x: x)\n"
    )
    assert read_step(f"{tmp_path}/rules.py:own").name() == f"{tmp_path}/rules.py:own"


def test_a_name_that_is_no_file_is_a_step(here: Path) -> None:
    with pytest.raises(UnknownPlugin, match="no step 'rules'"):
        read_step("rules")


def test_a_search_tries_rules_beside_its_own_recipes(here: Path) -> None:
    from ortune.backends.cpu import Cpu
    from ortune.graph.analysis.facts import read_facts
    from ortune.graph.io import file
    from ortune.search.recipe.space import list_recipes

    rule = spelling.parse_plugin(Transform, "./rules.py:unfuse")
    found = read_facts(file.load("m.onnx"))
    offered = list(list_recipes(found, Cpu(), Capabilities(), (rule,), exact=True))
    assert [one.name for one in offered] == ["as-is", "clean", "clean + rules"]
    assert rule in offered[2].steps and rule not in offered[1].steps
    newer = spelling.parse_plugin(Transform, "./rules.py:newer")
    steps = list(
        map(str, list(list_recipes(found, Cpu(), Capabilities(), (newer,), exact=True))[2].steps)
    )
    assert steps[0] == "raise-opset(to=24)" and "./rules.py:newer" in steps


@pytest.mark.long
def test_the_search_and_its_ledger_keep_the_rule(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["optimize", "m.onnx", "--step", "./rules.py:unfuse", "--on", "cpu(threads=1)"]
    assert main([*line, "--time", "3s", "-o", "run", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    edits = [edit["step"] for trial in found["trials"] for edit in trial["edits"]]
    assert "./rules.py:unfuse" in edits
    Path("rules.py").unlink()
    assert main(["report", "run", "-o", "again.html"]) == 0


# The rewriter replaces patterns in every graph and keeps off what is not its own.


HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def find(op: Any, x: Any, y: Any) -> Any:
    return op.Neg(op.Add(x, op.Exp(y)))


def put(op: Any, x: Any, y: Any) -> Any:
    return op.Sub(op.Neg(x), op.Exp(y))


def test_either_order_and_every_graph() -> None:
    text = f"""{HEAD} g (float[n] x, bool c) => (float[n] y) {{
        e = Exp(x) a = Add(e, x) t = Neg(a)
        y = If(c) <
          then_branch = p () => (float[n] q) {{ f = Exp(x) b = Add(t, f) q = Neg(b) }},
          else_branch = r () => (float[n] s) {{ s = Abs(t) }}> }}"""
    model = model_of(text)
    assert replace_matches(model, find, put) == 2
    assert ops(model) == {"Neg": 2, "Exp": 2, "Sub": 2, "If": 1, "Abs": 1}
    names = [node.name for node in model.graph.all_nodes()]
    assert all(names) and len(set(names)) == len(names)


def test_a_condition_decides() -> None:
    text = f"{HEAD} g (float[n] x) => (float[n] y) {{ e = Exp(x) a = Add(e, x) y = Neg(a) }}"
    model = model_of(text)
    assert replace_matches(model, find, put, lambda context, x, y: False) == 0
    assert replace_matches(model, [find], put, lambda context, x, y: x is y) == 1


def test_a_part_that_is_read_elsewhere_is_left() -> None:
    text = f"""{HEAD} g (float[n] x) => (float[n] y, float[n] z) {{
        e = Exp(x) a = Add(e, x) y = Neg(a) z = Abs(a) }}"""
    assert replace_matches(model_of(text), find, put) == 0


def test_the_default_of_an_input_is_no_constant() -> None:
    text = f"""{HEAD} g (float[n] x, float w) => (float[n] y) <float w = {{1}}> {{
        e = Exp(w) a = Add(x, e) y = Neg(a) }}"""
    assert replace_matches(model_of(text), find, put) == 0
