"""What each kind of network is offered on each kind of backend."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from ortune.backends.cuda import Cuda
from ortune.backends.directml import Directml
from ortune.backends.tensorrt import Tensorrt
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts, TensorSpec
from ortune.core.plugins import catalog
from ortune.core.step import Quantizer
from ortune.quantizers.fp16 import Fp16
from ortune.quantizers.int4_weights import Int4Weights
from ortune.quantizers.int8_static import Int8Static
from ortune.search.recipe.space import list_recipes

CPU = frozenset({"int8", "int8-dynamic"})
OPENVINO = frozenset({"int8", "int8-weights"})
HALF = frozenset({"fp16"})


@dataclass(frozen=True)
class Made(Backend):
    can: frozenset[str] = frozenset()

    @property
    def arithmetic(self) -> frozenset[str]:
        return self.can

    def open(self, path, *, verbose=False):  # type: ignore[no-untyped-def]
        raise NotImplementedError


VNNI = ("avx2", "avx512_vnni")


def offers(can: frozenset[str], ops: dict[str, int], flags: Iterable[str] = VNNI) -> list[str]:
    facts = Facts(ops, sum(ops.values()), 1, 1, {}, 17, 8, (), ())
    classes = [catalog.load_plugin(Quantizer, name) for name in catalog.list_plugins(Quantizer)]
    offered = Capabilities(instruction_sets=tuple(flags))
    return [str(step) for cls in classes for step in cls.offers(facts, Made(can=can), offered)]


CNN = {"Conv": 49, "Add": 9, "Gemm": 1}
TRANSFORMER = {"MatMul": 48, "Softmax": 6, "LayerNormalization": 12}
REQUANTIZED = "requantize(step=int8-static)"
RECURRENT = {"LSTM": 2, "GRU": 1, "MatMul": 1}


@pytest.mark.parametrize(
    ("can", "ops", "expected"),
    [
        (
            CPU,
            CNN,
            [
                "int8-static",
                "int8-static(observer=percentile)",
                "int8-static(keep_first=3)",
                "int8-static(head=true)",
            ],
        ),
        (CPU, {"Conv": 2, "Gemm": 1}, ["int8-static", "int8-static(head=true)"]),
        (CPU, {"Conv": 2}, ["int8-static"]),
        (
            CPU,
            TRANSFORMER,
            [
                "int4-weights",
                "int4-weights(block=128)",
                "int8-dynamic",
                "int8-static(smooth=0.75, split=4)",
                "int8-static",
                "int8-weights(form=nbits)",
            ],
        ),
        (CPU, RECURRENT, ["int8-dynamic", "int8-dynamic(ops=[LSTM])"]),
        (
            OPENVINO,
            CNN | {"ConvTranspose": 2},
            [
                "int8-static(target=openvino)",
                "int8-static(target=openvino, observer=percentile)",
                "int8-static(target=openvino, keep_first=3)",
                "int8-static(target=openvino, symmetric=true)",
                "int8-static(target=openvino, head=true)",
                "int8-weights",
            ],
        ),
        (HALF, CNN, ["fp16"]),
        (CPU, {"Relu": 3}, []),
        (frozenset(), TRANSFORMER, []),
        (CPU | HALF, CNN | {"QuantizeLinear": 5}, ["drop-pairs", REQUANTIZED]),
        (CPU, CNN | {"ConvInteger": 5}, ["float-convs", REQUANTIZED]),
        (CPU, {"QLinearConv": 49}, []),
    ],
)
def test_offers(can: frozenset[str], ops: dict[str, int], expected: list[str]) -> None:
    assert offers(can, ops) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2", "avx_vnni"}, "int8-static"),
        ({"avx2"}, "int8-static(reduce_range=true)"),
        ({"asimd"}, "int8-static(activations=s8)"),
        (set(), "int8-static"),
    ],
)
def test_instruction_sets_choose_the_integers(flags: set[str], expected: str) -> None:
    assert expected in offers(CPU, {"Conv": 2}, flags)
    both = ("", ", symmetric=true")
    for native, first in (
        ({"avx512_vnni"}, both),
        ({"avx512_vnni", "amx_int8"}, both[::-1]),
        ({"avx2"}, (", reduce_range=true", ", symmetric=true, reduce_range=true")),
    ):
        found = [one for one in offers(OPENVINO, {"Conv": 2}, native) if "int8-static" in one]
        assert found == [f"int8-static(target=openvino{grid})" for grid in first]


@pytest.mark.parametrize(
    ("flags", "ops", "attention"),
    [
        ({"avx512_vnni"}, TRANSFORMER, True),
        ({"avx512_vnni"}, CNN, False),
        ({"avx512_vnni", "amx_int8"}, TRANSFORMER, False),
        ({"avx2"}, TRANSFORMER, False),
    ],
)
def test_attention_is_in_integers_where_that_pays(
    flags: set[str], ops: dict[str, int], attention: bool
) -> None:
    found = [text for text in offers(OPENVINO, ops, flags) if "int8-static" in text]
    *others, last = ["attention=true" in text for text in found]
    assert others and all(taken is attention for taken in others)
    assert not last, "as float attention is faster with short sequences"


def names(can: frozenset[str], ops: dict[str, int]) -> list[str]:
    facts = Facts(ops, sum(ops.values()), 1, 1, {}, 17, 8, (), ())
    return [
        recipe.name
        for recipe in list_recipes(facts, Made(can=can), Capabilities(instruction_sets=VNNI))
    ]


def test_static_convolutions_and_dynamic_recurrent_layers_are_joined() -> None:
    joined = "int8-static + int8-dynamic"
    assert joined in names(CPU, {"Conv": 5, "LSTM": 1})
    assert joined not in names(CPU, {"Conv": 5, "MatMul": 2})


DECODER = Facts(
    *({"MatMul": 24, "Softmax": 6, "LayerNormalization": 12, "Gather": 2}, 44, 1, 1, {}, 17, 8),
    (TensorSpec("ids", "int64", (1, "n"), rows=32000),),
    (TensorSpec("logits", "float32", (1, "n", 32000)),),
)


@pytest.mark.parametrize(
    ("can", "expected"),
    [(CPU, "int8-dynamic(embeddings=true)"), (OPENVINO, "int8-weights(form=nbits, block=32)")],
)
def test_networks_that_name_tokens_have_four_bits_beside_a_head_of_eight(
    can: frozenset[str], expected: str
) -> None:
    assert DECODER.names_tokens
    found = [
        r.name for r in list_recipes(DECODER, Made(can=can), Capabilities(instruction_sets=VNNI))
    ]
    four = "int4-weights(ops=[MatMul, Gemm], {}head=false)"
    for method in ("", "method=gptq, "):
        assert f"{four.format(method)} + {expected}" in found
    assert not any(" + " in name for name in names(can, TRANSFORMER))


def test_tables_of_tokens_are_offered_in_integers() -> None:
    found = [
        r.name for r in list_recipes(DECODER, Made(can=CPU), Capabilities(instruction_sets=VNNI))
    ]
    assert "int8-dynamic(embeddings=true)" in found
    assert "int8-static(embeddings=true, smooth=0.75, split=4)" in found


def whole(ops: dict[str, int], backend: Backend, *, rows: int | None, last: int) -> list[str]:
    """Return the offers that take tables or heads, of a network whose answers are so wide."""
    given = (TensorSpec("ids", "int64", (1, "n"), rows=rows),)
    made = (TensorSpec("answer", "float32", (1, last)),)
    facts = Facts(ops, sum(ops.values()), 1, 1, {}, 19, 8, given, made)
    classes = [catalog.load_plugin(Quantizer, name) for name in catalog.list_plugins(Quantizer)]
    offered = Capabilities(instruction_sets=VNNI)
    found = [str(step) for cls in classes for step in cls.offers(facts, backend, offered)]
    return [name for name in found if "head" in name or "embeddings" in name]


VISION = TRANSFORMER | {"Conv": 1}
TEXT_CNN = {"Gather": 1, "Conv": 3, "Gemm": 1}
READER = {"Gather": 1, "LSTM": 1}


@pytest.mark.parametrize(
    ("ops", "rows", "last", "expected"),
    [
        (VISION, None, 1000, ["int8-static(head=true, smooth=0.75, split=4)"]),
        (VISION, None, 2, []),
        (CNN, None, 10, []),
        (TEXT_CNN, 500, 20, ["int8-static(embeddings=true, head=true)"]),
        (TEXT_CNN, 500, 2, ["int8-static(embeddings=true)"]),
        (READER, 500, 2, ["int8-dynamic(embeddings=true)"]),
    ],
)
def test_tables_and_heads_are_one_plan_more(
    ops: dict[str, int], rows: int | None, last: int, expected: list[str]
) -> None:
    assert whole(ops, Made(can=CPU), rows=rows, last=last) == expected


def test_what_takes_no_table_is_offered_the_head_alone() -> None:
    assert whole(TEXT_CNN, Tensorrt(), rows=500, last=20) == [
        "int8-static(target=tensorrt, head=true)"
    ]


def test_four_bits_are_tried_after_eight() -> None:
    tried = names(CPU, TRANSFORMER)
    assert tried.index("int4-weights") > tried.index("int8-weights(form=nbits)")


GPUS = (Cuda(), Tensorrt(), Directml())


def steps_for(backend: Backend) -> list[Quantizer]:
    facts = Facts({"Conv": 30, "MatMul": 8, "LSTM": 1}, 39, 1, 1, {}, 19, 8, (), ())
    found: list[Quantizer] = []
    for name in catalog.list_plugins(Quantizer):
        cls = catalog.load_plugin(Quantizer, name)
        found += cls.offers(facts, backend, Capabilities())
        found += [step for mix in cls.mixes(facts, backend, Capabilities()) for step in mix]
    return found


@pytest.mark.parametrize("backend", GPUS, ids=str)
def test_no_gpu_is_offered_ranges_taken_in_the_run(backend: Backend) -> None:
    """Their operators have no kernel there; see `convert` and `model.lint.gpu`."""
    assert not [step for step in steps_for(backend) if step.name() == "int8-dynamic"]


def test_static_int8_follows_the_rules_of_the_provider() -> None:
    found = {
        backend.name(): {
            step.target for step in steps_for(backend) if isinstance(step, Int8Static)
        }
        for backend in GPUS
    }
    assert found == {"cuda": set(), "tensorrt": {"tensorrt"}, "directml": {"directml"}}


def test_tensorrt_is_offered_int8_with_the_rest_in_float16() -> None:
    base = Fp16.mixes(facts_of(19), Tensorrt(), Capabilities())
    assert [[str(step) for step in mix] for mix in base] == [
        ["int8-static(target=tensorrt)", "fp16(pairs=true)"]
    ]
    assert list(Fp16.mixes(facts_of(17), Tensorrt(), Capabilities())) == []
    assert list(Fp16.mixes(facts_of(19), Cuda(), Capabilities())) == []


def facts_of(opset: int) -> Facts:
    return Facts({"Conv": 4}, 4, 1, 1, {}, opset, 8, (), ())


def test_four_bits_that_lose_too_much_are_tried_with_float_tables_first() -> None:
    facts = Facts({"MatMul": 9, "Gather": 1}, 10, 1, 1, {}, 17, 8, (), (), table_bytes=400)
    (tables, *_), (data, *_), *_ = Int4Weights(block=128).rescues(facts)
    assert str(tables) == "int4-weights(ops=[MatMul, Gemm], block=128)"
    assert str(data) == "int4-weights(block=128, method=gptq)"
    assert [one.method for (one,) in tables.rescues(facts)] == ["gptq"] * 2
    without = [str(one) for (one,) in Int4Weights().rescues(replace(facts, table_bytes=0))]
    assert without[0] == "int4-weights(method=gptq)"


EVERYTHING = CPU | OPENVINO | {"fp8"}


@pytest.mark.parametrize(
    "ops",
    [
        {"ai.onnx.ml::TreeEnsembleClassifier": 1, "ai.onnx.ml::ZipMap": 1, "Cast": 1},
        {"ai.onnx.ml::TreeEnsemble": 1, "Reshape": 1},
        {"ai.onnx.ml::LinearClassifier": 1, "ai.onnx.ml::Normalizer": 1},
        {"StringNormalizer": 1, "TfIdfVectorizer": 1, "ai.onnx.ml::LabelEncoder": 1},
        {"StringSplit": 1, "RegexFullMatch": 1, "Gather": 2},
        {"DequantizeLinear": 4, "MatMul": 4, "Softmax": 1},
        {"DequantizeLinear": 4, "Conv": 2, "Relu": 1},
        {"com.microsoft::MatMulNBits": 4, "com.microsoft::GatherBlockQuantized": 1},
    ],
    ids=lambda ops: next(iter(ops)),
)
def test_nothing_is_offered_where_no_weight_is_float(ops: dict[str, int]) -> None:
    assert offers(EVERYTHING, ops) == []


def test_layers_beside_stored_weights_are_offered_something() -> None:
    assert "int8-weights" in offers(OPENVINO, {"DequantizeLinear": 2, "MatMul": 4})
    facts = Facts({"DequantizeLinear": 8, "Conv": 6}, 14, 1, 1, {}, 17, 8, (), ())
    assert not facts.has_float_layers
    assert replace(facts, precisions={"float32": 900, "int8": 100}).has_float_layers
    assert not replace(facts, precisions={"float32": 100, "int8": 900}).has_float_layers
