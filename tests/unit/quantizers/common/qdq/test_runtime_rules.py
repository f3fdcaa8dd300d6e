"""Every row of the table of rules, measured again where its runtime is installed.

A row of onnxruntime's CPU provider: its operator is put between pairs, onnxruntime optimizes the
toy, and the surviving pairs are counted. OpenVINO's rows have a file of their own. TensorRT, CUDA
and DirectML are not here: their rows are checked for form alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tests.unit.quantizers.common.qdq.rule_toys import KERNEL, TOYS, WIDE, Toy, integers
from tests.unit.quantizing import normal

from ortune.quantizers.common.qdq import runtime_rules
from ortune.quantizers.common.qdq.runtime_rules import RULES, TARGETS, Rule, Treatment


def optimized(proto: onnx.ModelProto, folder: Path) -> list[onnx.NodeProto]:
    """Return the nodes that onnxruntime makes of a file."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(onnx.load(folder / "optimized.onnx").graph.node)


def around(toy: Toy, folder: Path) -> int:
    """Return how many pairs' halves survive beyond those at the inputs and at the output."""
    found = [node.op_type for node in optimized(toy.proto(), folder)]
    inputs = 2 if "v_r" in toy.line else 1
    return found.count("QuantizeLinear") + found.count("DequantizeLinear") - inputs - toy.pair


def rows(provider: str, *gives: Treatment) -> list[Any]:
    found = [r for r in RULES if r.provider == provider and r.treatment in gives]
    return [pytest.param(r, id="-".join(filter(None, (r.op, r.case)))) for r in found]


PLACED = (Treatment.INTEGER, Treatment.MOVES, Treatment.ABSORBED)


@pytest.mark.parametrize("row", rows("cpu", *PLACED))
def test_no_pair_survives_on_the_cpu(row: Rule, tmp_path: Path) -> None:
    left = around(TOYS[row.op, row.case], tmp_path)
    # A linear Resize computes in float itself; its row says so.
    assert left == (2 if "itself in float" in row.source else 0)


@pytest.mark.parametrize("row", rows("cpu", Treatment.FLOAT))
def test_pairs_survive_on_the_cpu(row: Rule, tmp_path: Path) -> None:
    left = around(TOYS[row.op, row.case], tmp_path)
    # Softmax fuses: its row is about what it costs, and says so.
    assert left == 0 if "fuses" in row.source else left > 0


@pytest.mark.parametrize(
    "op", sorted({r.op for r in RULES if r.treatment is Treatment.MOVES} - {"Resize"})
)
def test_what_moves_values_needs_one_grid(op: str, tmp_path: Path) -> None:
    toy = TOYS[op, ""]
    two = Toy(toy.line, toy.shape, "other", toy.weights)
    assert around(two, tmp_path) > 0


def test_an_absorbed_activation_needs_a_grid_from_zero(tmp_path: Path) -> None:
    toy = TOYS["Relu", "behind Conv, Gemm or Add"]
    moved = {"zero": np.uint8(10)}
    assert around(Toy(toy.line, weights={**KERNEL, **moved}, parts=toy.parts), tmp_path) > 0


def test_a_float_convolution_between_pairs_is_quantized_by_the_runtime(tmp_path: Path) -> None:
    toy = Toy("y = Conv(x_r, kernel)", weights={"kernel": normal(6, 4, 3, 3)})
    assert "QLinearConv" in [node.op_type for node in optimized(toy.proto(), tmp_path)]


def test_steps_by_column_of_stacked_matrices_fail_in_the_run() -> None:
    stacked = integers(3, 16, 24, axis=2)
    toy = Toy("y = MatMul(x_r, w_r)", "3,5,16", weights=stacked, pair=False, parts=WIDE.format(2))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(toy.proto().SerializeToString(), options)
    feed = {"x": normal(3, 5, 16), "v": normal(3, 5, 16)}
    with pytest.raises(Exception, match="zero point"):
        session.run(None, feed)


def test_a_pair_with_a_list_of_one_step_does_not_load() -> None:
    toy = Toy("y = Add(x_r, v_r)", weights={"other": np.array([0.05], np.float32)})
    listed = {"zero": np.array([0], np.uint8), "scale": np.array([0.02], np.float32)}
    proto = Toy(toy.line, weights={**(toy.weights or {}), **listed}).proto()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="scalar"):
        ort.InferenceSession(proto.SerializeToString(), options)


def test_eight_bits_of_both_sides_overflow_sixteen() -> None:
    """VPMADDUBSW adds two products of u8 and s8 in int16; seven bits of weight always fit."""
    most = np.iinfo(np.int16).max
    assert most < 2 * 255 * 127
    assert most >= 2 * 255 * 63


@pytest.mark.parametrize(
    ("target", "flags", "gives"),
    [
        ("cpu", {"avx2", "avx512_vnni"}, None),
        ("cpu", {"avx2", "avx512_vnni", "amx_int8"}, None),
        ("cpu", {"avx2", "avx_vnni"}, None),
        ("cpu", {"avx2"}, Treatment.REDUCED),
        ("cpu", {"asimd", "asimddp"}, Treatment.SIGNED),
        ("cpu", set(), None),
        ("openvino", {"avx2", "avx512_vnni", "amx_int8"}, Treatment.SYMMETRIC),
        ("openvino", {"avx2", "avx512_vnni"}, None),
        ("openvino", {"avx2"}, Treatment.REDUCED),
        ("tensorrt", {"avx2", "avx512_vnni", "amx_int8"}, None),
    ],
)
def test_instruction_sets(
    target: runtime_rules.Target, flags: set[str], gives: Treatment | None
) -> None:
    assert runtime_rules.find_isa_treatment(target, frozenset(flags)) is gives


@pytest.mark.parametrize(
    ("target", "flags", "pays"),
    [
        ("openvino", {"avx2", "avx512_vnni"}, True),
        ("openvino", {"avx2", "avx512_vnni", "amx_int8"}, False),
        ("openvino", {"avx2"}, False),
        ("openvino", set(), False),
        ("cpu", {"avx2", "avx512_vnni"}, False),
    ],
)
def test_where_integer_attention_pays(
    target: runtime_rules.Target, flags: set[str], pays: bool
) -> None:
    assert runtime_rules.gains_by_attention(target, frozenset(flags)) is pays


@pytest.mark.parametrize("row", RULES, ids=lambda r: "-".join((r.provider, r.isa, r.op, r.case)))
def test_form(row: Rule) -> None:
    assert row.source
    assert row.isa == "any" or row.op == "*" or row.case
    if row.provider == "cpu" and row.treatment in (*PLACED, Treatment.FLOAT):
        assert (row.op, row.case) in TOYS


NAMED = ("INTEGER", "STORED", "JOINED", "MOVES", "FLOAT", "ABSORBED")


def test_no_row_contradicts_another() -> None:
    keys = [(r.op, r.provider, r.isa, r.case) for r in RULES if r.treatment.name in NAMED]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("target", runtime_rules.TARGETS)
def test_every_target_has_layers(target: runtime_rules.Target) -> None:
    assert {"Conv", "MatMul"} <= set(runtime_rules.list_layer_ops(target))
    assert not set(runtime_rules.list_following_ops(target)) & set(runtime_rules.LAYERS)
    assert runtime_rules.needs_symmetric_s8(target) is (target in ("tensorrt", "cuda"))


# The page's table of rules is the one that the code follows.


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
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in table[table.index(COLUMNS) :] if len(row) == len(COLUMNS)]
    missing = [r for r in besides if not any(is_row_of(r, row) for row in rows)]
    assert besides
    assert not missing


OTHERS = (Treatment.STORED, Treatment.MOVES, Treatment.FLOAT, Treatment.LOSSY)
COLUMNS = ["target", "pattern", "result"]


def is_row_of(rule: Rule, row: Sequence[str]) -> bool:
    target, pattern, result = row
    ops = "every layer" if rule.op == "*" else rule.op
    return rule.provider in target and ops in pattern and rule.treatment.value in result
