"""Each rule finds its own fault, and a plain model has none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ortune.core.errors import OrtuneError
from ortune.core.reading import read_step
from ortune.core.step import Transform
from ortune.graph.analysis.facts import read_facts, weight_values
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.graph.lint.rules import Finding, lint_model, make_finding
from ortune.graph.shapes.infer import infer_copy
from ortune.transforms.raise_opset import RaiseOpset

HEAD = '<ir_version: 10, opset_import: ["" : 18]> '
PLAIN = HEAD + (
    "g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {1, 2, 3, 4}> { [mul] y = Mul(x, w) }"
)


def linted(
    text: str, folder: Path, *, weights: bool = True, **tensors: np.ndarray
) -> list[Finding]:
    """Look at a model text as a file; named initializers are added to it."""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in tensors.items())
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    model = file.load(path, newer_opset=True)
    values = list(weight_values(model)) if weights else None
    return list(lint_model(model, infer_copy(model)[0], file.parse_outline(path), values))


def rules(found: list[Finding]) -> dict[str, Finding]:
    return {one.rule: one for one in found}


def test_nothing_is_odd_about_a_plain_model(tmp_path: Path) -> None:
    assert linted(PLAIN, tmp_path) == []


BODY = {
    "no-nodes": "g (float[n] x) => (float[n] x) { }",
    "unused-input": "g (float[n] x, float[n] z) => (float[n] y) { [a] y = Abs(x) }",
    "unused-weights": ("g (float[n] x) => (float[n] y) <float[2] w = {1, 2}> { [a] y = Abs(x) }"),
    "dead-nodes": "g (float[n] x) => (float[n] y) { [a] y = Abs(x) [b] z = Neg(x) }",
    "overridable-weights": (
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { [a] y = Mul(x, w) }"
    ),
    "constant-output": (
        "g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}> "
        "{ [a] y = Abs(x) [b] z = Neg(w) }"
    ),
    "input-as-output": "g (float[n] x) => (float[n] y, float[n] x) { [a] y = Abs(x) }",
    "random-operator": (
        "g (float[2] x) => (float[2] y) { [a] r = RandomNormalLike(x) [b] y = Add(x, r) }"
    ),
    "no-op-nodes": "g (float[n] x) => (float[n] y) { [a] z = Identity(x) [b] y = Abs(z) }",
    "training-mode": (
        "g (float[n, 4] x, float[4] s) => (float[n, 4] y) "
        "{ [a] y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s) }"
    ),
    "control-flow": (
        "g (float[n] x, bool c) => (float[n] y) { [a] y = If (c) <"
        "then_branch = t () => (float[n] o) { [b] o = Abs(x) }, "
        "else_branch = e () => (float[n] p) { [d] p = Neg(x) }> }"
    ),
    "double": "g (double[n] x) => (double[n] y) { [a] y = Abs(x) }",
    "sequences": (
        "g (float[n] x) => (float[n] y) { [a] s = SequenceConstruct(x) "
        "[c] i = Constant<value = int64 {0}>() [b] y = SequenceAt(s, i) }"
    ),
    "unnamed-nodes": "g (float[n] x) => (float[n] y) { y = Abs(x) }",
    "duplicate-names": "g (float[n] x) => (float[n] y) { [a] z = Abs(x) [a] y = Neg(z) }",
    "declared-shape": (
        "g (float[2, 3] x) => (float[2, 3] y) <float[9, 9] z> { [a] z = Abs(x) [b] y = Neg(z) }"
    ),
}


@pytest.mark.parametrize("rule", BODY)
def test_a_rule_finds_its_fault(rule: str, tmp_path: Path) -> None:
    found = rules(linted(HEAD + BODY[rule], tmp_path))
    assert rule in found
    one = found[rule]
    assert one.count >= len(one.places) > 0 and one.what and one.cost and one.action


@pytest.mark.parametrize(
    ("opset", "body"),
    [
        (17, "[a] y = SimplifiedLayerNormalization<axis = -1>(x, w)"),
        (13, "[a] y = LayerNormalization<axis = -1>(x, w, w)"),
        (9, "[a] s = ScaledTanh<alpha = 2.0, beta = 0.5>(x) [b] y = Mul(s, w)"),
        (18, "[a] y = com.microsoft.SkipSimplifiedLayerNormalization(x, x, w)"),
    ],
)
def test_what_onnxruntime_adds_to_onnx_is_valid(opset: int, body: str, tmp_path: Path) -> None:
    """Its optimizer, and model builders for it, write such files."""
    head = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> '
    text = f"g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {{1, 2, 3, 4}}> {{ {body} }}"
    found = rules(linted(head + text, tmp_path))
    assert "invalid" not in found
    assert ("runtime-operator" in found) == ("com.microsoft" not in body)


def test_what_nobody_knows_is_invalid(tmp_path: Path) -> None:
    text = "g (float[n, 4] x) => (float[n, 4] y) { [a] y = ScaledTanh(x) }"
    assert "runtime-operator" not in rules(linted(HEAD + text, tmp_path))  # gone with opset 10
    text = "g (float[n, 4] x) => (float[n, 4] y) { [a] y = Frobnicate(x) }"
    assert "invalid" in rules(linted(HEAD + text, tmp_path))


@pytest.mark.parametrize(
    ("ir_version", "opset", "found_rules"),
    [
        (13, 26, set()),
        (13, 28, {"new-opset"}),
        (14, 20, {"new-ir"}),
        (14, 28, {"new-ir", "new-opset"}),
    ],
)
def test_a_model_newer_than_the_runtime_is_told_the_step_that_writes_an_older_one(
    ir_version: int, opset: int, found_rules: set[str], tmp_path: Path
) -> None:
    head = f'<ir_version: {ir_version}, opset_import: ["": {opset}]> '
    found = rules(linted(head + "g (float[n] x) => (float[n] y) { [a] y = Abs(x) }", tmp_path))
    assert set(found) == found_rules
    lowered = {rule for rule, one in found.items() if '"lower-opset(to=26)"' in one.action}
    assert lowered == (found_rules if opset > 26 else set())


EQUAL = (
    HEAD + "g (float[n, 128] x) => (float[n, 128] y) { [a] h = MatMul(x, w) [b] y = MatMul(h, v) }"
)
CURED = {rule: HEAD + body for rule, body in BODY.items()} | {
    "old-opset": PLAIN.replace('"" : 18', '"" : 9'),
    "deprecated-operator": (
        '<ir_version: 8, opset_import: ["" : 9]> g (float[1, 1, 2, 2] x) => (float[a, b, c, d] y) '
        '<float[4] s = {1, 1, 2, 2}> { [up] y = Upsample<mode = "nearest">(x, s) }'
    ),
    "equal-weights": EQUAL,
}


@pytest.mark.parametrize("rule", CURED)
def test_a_step_that_is_advised_takes_the_fault_away(rule: str, tmp_path: Path) -> None:
    same = np.ones((128, 128), np.float32)
    arrays = {"w": same, "v": same} if rule == "equal-weights" else {}
    fault = rules(linted(CURED[rule], tmp_path, **arrays))[rule]
    advised = re.match(r"apply ([\w-]+)", fault.action)
    if advised is None:
        assert "apply" not in fault.action.split()[:1]
        return
    model = file.load(tmp_path / "m.onnx", newer_opset=True)
    step = read_step(advised[1])
    assert isinstance(step, Transform)
    assert step.apply(model) > 0
    file.save(model, tmp_path / "cured.onnx")
    cured = file.load(tmp_path / "cured.onnx")
    left = lint_model(cured, infer_copy(cured)[0], file.parse_outline(tmp_path / "cured.onnx"), [])
    assert rule not in rules(list(left))


def test_a_model_of_trees_is_not_told_to_raise_an_opset(tmp_path: Path) -> None:
    text = (
        '<ir_version: 6, opset_import: ["ai.onnx.ml" : 3]> g (float[n, 4] x) => (float[n, 1] y) '
        "{ [trees] y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_treeids = [0], "
        'nodes_nodeids = [0], nodes_featureids = [0], nodes_modes = ["LEAF"], '
        "nodes_values = [0.0], nodes_truenodeids = [0], nodes_falsenodeids = [0], "
        "target_treeids = [0], target_nodeids = [0], target_ids = [0], "
        "target_weights = [1.0]>(x) }"
    )
    assert [one for one in linted(text, tmp_path) if "raise-opset" in one.action] == []
    model = file.load(tmp_path / "m.onnx")
    assert RaiseOpset().apply(model) == 0
    assert "no operator of the default domain" in edit.take_notes(model)


def test_trees_in_float64_are_not_told_to_become_float32(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["ai.onnx.ml" : 5]> '
        "g (double[n, 4] x) => (double[n, 1] y) { [trees] y = "
        "ai.onnx.ml.TreeEnsemble<n_targets = 1, tree_roots = [0], "
        "nodes_featureids = [0], nodes_splits = double[1] {0.5}, nodes_modes = uint8[1] {0}, "
        "nodes_truenodeids = [0], nodes_falsenodeids = [1], nodes_trueleafs = [1], "
        "nodes_falseleafs = [1], leaf_targetids = [0, 0], "
        "leaf_weights = double[2] {1.0, 2.0}>(x) }"
    )
    assert "double" not in rules(linted(text, tmp_path))


def test_inputs_that_only_dead_nodes_read_are_unused_too(tmp_path: Path) -> None:
    text = "g (float[n] x, float[n] z) => (float[n] y) { [a] y = Abs(x) [b] d = Neg(z) }"
    found = rules(linted(HEAD + text, tmp_path))
    assert found["unused-input"].places == ("z",)
    assert found["dead-nodes"].places == ("b",)


def test_values_of_weights_are_read_only_when_asked(tmp_path: Path) -> None:
    bad = np.array([1, np.nan, 3, 4], np.float32)
    text = HEAD + "g (float[n, 4] x) => (float[n, 4] y) { [mul] y = Mul(x, w) }"
    assert rules(linted(text, tmp_path, w=bad))["nan-weights"].places == ("w",)
    assert linted(text, tmp_path, weights=False, w=bad) == []


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("nan-weights", [1, np.nan, 1, 1]),
        ("infinite-weights", [1, -np.inf, 1, 1]),
        ("denormal-weights", [1, 1e-40, 1, 1]),
        ("fp16-overflow", [1, -70000, 1, 1]),
        ("fp16-masks", [1, -3.4e38, 1, 1]),
        ("fp16-small", [1, 1e-5, 1, 1]),
    ],
)
def test_values_that_hurt_are_found(rule: str, values: list[float], tmp_path: Path) -> None:
    text = HEAD + "g (float[n, 4] x) => (float[n, 4] y) { [mul] y = Mul(x, w) }"
    array = np.array(values, np.float32)
    found = rules(linted(text, tmp_path, w=array))
    extra = {"fp16-small"} if rule == "denormal-weights" else set()
    assert set(found) == {rule} | extra
    assert found[rule].places == ("w",)


@pytest.mark.parametrize("values", [[1, 65504, 0, -65504], [6.2e-5, 0, 0, -1]])
def test_values_at_the_border_do_not_hurt(values: list[float], tmp_path: Path) -> None:
    text = HEAD + "g (float[n, 4] x) => (float[n, 4] y) { [mul] y = Mul(x, w) }"
    assert linted(text, tmp_path, w=np.array(values, np.float32)) == []


def test_the_last_of_many_values_is_looked_at(tmp_path: Path) -> None:
    text = HEAD + "g (float[n, 1100000] x) => (float[n, 1100000] y) { [mul] y = Mul(x, w) }"
    array = np.ones(1_100_000, np.float32)
    array[-1] = np.nan
    assert set(rules(linted(text, tmp_path, w=array))) == {"nan-weights"}


def test_shares_of_denormals_agree(tmp_path: Path) -> None:
    text = HEAD + "g (float[n, 4] x) => (float[n, 4] y) { [mul] y = Mul(x, w) }"
    found = rules(linted(text, tmp_path, w=np.array([1, 1e-40, 2, 3], np.float32)))
    assert "25.00%" in found["denormal-weights"].what
    assert read_facts(file.load(tmp_path / "m.onnx"), read=True).denormals == 0.25


def test_copies_of_weights_are_found_when_they_are_large(tmp_path: Path) -> None:
    text = HEAD + (
        "g (float[n, 30000] x) => (float[n, 30000] y) { [a] z = Mul(x, w) [b] y = Mul(z, v) }"
    )
    one = np.arange(1, 30001, dtype=np.float32)
    found = rules(linted(text, tmp_path, w=one, v=one))
    assert found["equal-weights"].places == ("v",)
    assert "120,000 bytes" in found["equal-weights"].cost
    assert linted(text, tmp_path, w=one, v=one + 1) == []


def test_old_and_new_files(tmp_path: Path) -> None:
    old = PLAIN.replace('"" : 18', '"" : 9').replace("ir_version: 10", "ir_version: 14")
    found = rules(linted(old, tmp_path))
    assert {name: one.severity for name, one in found.items()} == {
        "old-opset": "warning",
        "new-ir": "warning",
    }
    unknown = rules(linted(PLAIN.replace('"" : 18', '"" : 999'), tmp_path))
    assert unknown["unknown-opset"].severity == "error"
    middle = rules(linted(PLAIN.replace('"" : 18', '"" : 12'), tmp_path))
    assert middle["old-opset"].severity == "note"


def test_operators_that_are_gone_or_foreign(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 9, "own" : 1, "lib" : 1]> '
        "g (float[1, 1, 2, 2] x) => (float[a, b, c, d] y) <float[4] s = {1, 1, 2, 2}> "
        "{ [up] u = Upsample(x, s) [one] v = own.f(u) [two] y = lib.Odd(v) } "
        '<domain: "own", opset_import: ["" : 9]> f (p) => (q) { q = Abs(p) }'
    )
    found = rules(linted(text, tmp_path))
    assert found["deprecated-operator"].places == ("Upsample up",)
    assert found["custom-operator"].places == ("lib::Odd two",)


def test_dropout_in_inference_is_no_fault(tmp_path: Path) -> None:
    text = "g (float[n] x) => (float[n] y) { [a] y = Dropout(x) }"
    assert set(rules(linted(HEAD + text, tmp_path))) == {"no-op-nodes"}


def test_names_with_blanks(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(PLAIN)
    proto.graph.node[0].name = "my node"
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    model = file.load(path)
    found = lint_model(
        model, infer_copy(model)[0], file.parse_outline(path), list(weight_values(model))
    )
    assert [(one.rule, one.places) for one in found] == [("odd-names", ("'my node'",))]


def test_one_place_is_singular_and_errors_come_first(tmp_path: Path) -> None:
    made: Callable[[list[str]], Finding | None] = lambda places: make_finding(  # noqa: E731
        "r", "note", "{n} nodes without a name", places, "", ""
    )
    one, two, none = made(["a"]), made(["a", "b", "b"]), made([])
    assert none is None and one is not None and two is not None
    assert (one.what, two.what) == ("1 node without a name", "2 nodes without a name")
    bad = np.array([1, np.nan, 1e-40, 4], np.float32)
    text = HEAD + "g (float[n, 4] x) => (float[n, 4] y) { y = Mul(x, w) }"
    found = linted(text, tmp_path, w=bad)
    assert [f.severity for f in found] == ["error", "warning", "note", "note"]


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    linted(PLAIN, tmp_path)
    model = file.load(tmp_path / "m.onnx")
    assert infer_copy(model, {"x": (3, 4)})[0].graph.outputs[0].shape == [3, 4]
    for shapes in ({"z": (1,)}, {"x": (3, 5)}, {"x": (3,)}):
        with pytest.raises(OrtuneError):
            infer_copy(model, shapes)


def test_the_page_lists_every_rule() -> None:
    root = Path(__file__).parents[4]
    package = root / "src/ortune"
    sources = [*package.glob("graph/lint/*.py"), package / "analysis/inspection/inspect.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    every = set(re.findall(r'finding\(\s*"([a-z0-9-]+)"', text))
    page = (root / "docs" / "looking.md").read_text(encoding="utf-8")
    listed = {
        rule
        for line in page.splitlines()
        if line[:3] == "| `"
        for rule in re.findall(r"`([a-z0-9-]+)`", line.split("|")[1])
    }
    assert len(every) > 25
    assert every <= listed
