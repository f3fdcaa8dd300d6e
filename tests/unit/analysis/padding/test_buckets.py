"""Padding is found, proved to be without effect, and cut; where it is not, nothing is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortune as ot
from ortune.analysis.padding.buckets import buckets
from ortune.backends.bucketed import Bucketed, count_real_columns
from ortune.backends.cpu import Cpu
from ortune.cli import main as cli
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadSettings, OrtuneError, Refused
from ortune.core.facts import TensorSpec
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.data import padding
from ortune.search import optimize as unpadded
from ortune.search import padding as bucketing
from ortune.search.padding import Proof, choose_buckets

WIDTH, HIDDEN = 32, 8
LONG = 512
"""Where a choice is timed: no noise hides what these positions cost."""
HEAD = """<ir_version: 8, opset_import: ["": 17]>
toy (int64[b,s] ids, int64[b,s] mask) => ({outputs})
<float[50,8] table, float[8,8] wq, float[8,8] wv, int64[1] one = {{1}}, int64[1] two = {{2}},
 float high = {{1.0}}, float low = {{-1e9}}> {{
    x = Gather(table, ids)
    real = Cast<to = 1>(mask)
    q = MatMul(x, wq)
    k = Transpose<perm = [0, 2, 1]>(x)
    dots = MatMul(q, k)
    inverse = Sub(high, real)
    away = Mul(inverse, low)
    row = Unsqueeze(away, one)
    seen = Add(dots, row)
    shares = Softmax<axis = 2>(seen)
    v = MatMul(x, wv)
    tokens = MatMul(shares, v)
    {tail}
}}"""
POOLED = "float[b,s,8] tokens, float[b,8] pooled"
MASKED = """wide = Unsqueeze(real, two)
    kept = Mul(tokens, wide)
    total = ReduceSum<keepdims = 0>(kept, one)
    count = ReduceSum(real, one)
    pooled = Div(total, count)"""
UNMASKED = "pooled = ReduceMean<axes = [1], keepdims = 0>(tokens)"


def write(path: Path, outputs: str = POOLED, tail: str = MASKED) -> Path:
    model = onnx.parser.parse_model(HEAD.format(outputs=outputs, tail=tail))
    rng = np.random.default_rng(0)
    for name, shape in (("table", (50, HIDDEN)), ("wq", (8, 8)), ("wv", (8, 8))):
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, path)
    return path


def samples(
    path: Path, lengths: list[int], *, side: str = "right", width: int = WIDTH, **more: Any
) -> Path:
    path.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for index, length in enumerate(lengths):
        mask = row(length, width, side)
        ids = rng.integers(1, 50, (1, width)) * mask
        np.savez(path / f"{index:03}.npz", ids=ids, mask=mask, **more)
    return path


def row(length: int, width: int = WIDTH, side: str = "right") -> np.ndarray:
    places = np.arange(width)[None]
    real = places < length if side == "right" else places >= width - length
    return real.astype(np.int64)


# --- choosing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_no_other_lengths_are_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, width = rng.integers(1, 15, 12).tolist(), 14

    def cost(n: int) -> float:
        return 3 + n + 0.1 * n * n

    for count in (1, 2, 3):
        found = bucketing.choose(lengths, width, count, cost)
        assert len(found) <= count
        every = (
            bucketing.share(lengths, [width] * 12, some, cost)
            for k in range(count + 1)
            for some in itertools.combinations(range(1, width), k)
        )
        got = bucketing.share(lengths, [width] * 12, found, cost)
        assert got == pytest.approx(min(every))


def test_buckets_are_multiples_and_never_the_width() -> None:
    assert bucketing.choose([3, 9, 17, 31], 32, 4, multiple=8) == (8, 16, 24)
    assert bucketing.choose([30, 32], 32, 4, multiple=8) == ()


def test_what_a_length_costs_decides() -> None:
    calls = [4, 12, 12, 12]
    assert bucketing.choose(calls, 16, 1) == (12,), "48 positions, against 52"
    assert bucketing.choose(calls, 16, 1, lambda n: float(n > 4)) == (4,)


def test_timings_never_fall_with_the_length() -> None:
    cost = bucketing.between({8: 10.0, 16: 9.0, 32: 30.0})
    assert [cost(n) for n in (4, 8, 16, 24, 32, 64)] == [10, 10, 10, 20, 30, 30]


# --- the mask -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.bool_, np.float32, ">i8"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_extent(kind: Any, side: str) -> None:
    rows = [row(n, side=side) for n in (3, 11)]
    assert [count_real_columns(one.astype(kind), side) for one in rows] == [3, 11]
    assert count_real_columns(np.concatenate(rows).astype(kind), side) == 11
    assert count_real_columns(np.concatenate([rows[0], row(0)]).astype(kind), side) == 0
    assert count_real_columns(row(0).astype(kind), side) == 0
    assert count_real_columns(row(WIDTH).astype(kind), side) == WIDTH


def test_holes_are_kept() -> None:
    assert count_real_columns(np.array([[1, 0, 0, 1, 0, 0]])) == 4
    assert count_real_columns(np.array([[0, 1, 1, 0]])) == 0
    assert count_real_columns(np.zeros((1, 0))) == 0


SPECS = (TensorSpec("ids", "int64", ("b", "s")), TensorSpec("mask", "int64", ("b", "s")))


def found(specs: tuple[TensorSpec, ...], *given: Mapping[str, Any]) -> padding.Padding:
    return padding.find_padding(
        specs, [{k: np.asarray(v) for k, v in one.items()} for one in given]
    )


def test_what_is_padded() -> None:
    more = TensorSpec("types", "int64", (None, None)), TensorSpec("bias", "float32", (8,))
    ids, bias = np.ones((1, 6)), np.ones(8)
    given = [
        {"ids": ids, "mask": [[1] * n + [0] * (6 - n)], "types": [[0] * 3 + [1] * 3], "bias": bias}
        for n in (2, 4)
    ]
    got = found((*SPECS, *more), *given)
    assert got == padding.Padding("mask", ("ids", "types"), "right", (2, 4), (6, 6))
    assert got.share == 0.5


def test_a_mask_by_another_name_and_padding_on_the_left() -> None:
    specs = (SPECS[0], TensorSpec("kept", "bool", ("b", "s")))
    got = found(specs, {"ids": [[5, 6, 7]], "kept": [[False, False, True]]})
    assert (got.mask, got.inputs, got.side, got.lengths) == ("kept", ("ids",), "left", (1,))


@pytest.mark.parametrize(
    ("masks", "said"),
    [
        ([[[1, 0, 1, 0]]], "mask 'mask' has holes: sample 0"),
        ([[[1, 1, 0, 0]], [[0, 0, 1, 1]]], "some samples are padded on the left"),
        ([[[1, 2, 0, 0]]], "'mask' is not a mask: sample 0 holds more than 0 and 1"),
        ([[[1, 1, 1, 0]], [[0, 0, 0, 0]]], "sample 1 has a row without a real position"),
        ([[[1, 1, 1, 1]]], "no sample is padded"),
    ],
)
def test_data_that_show_no_padding(masks: list[Any], said: str) -> None:
    given = [{"ids": np.full((1, 4), 7), "mask": mask} for mask in masks]
    with pytest.raises(BadData, match=said) as caught:
        found(SPECS, *given)
    assert len(str(caught.value).splitlines()) == 2


def test_models_that_show_no_padding() -> None:
    ids = {"ids": np.full((1, 4), 7)}
    with pytest.raises(BadData, match="no input is a mask"):
        found(SPECS[:1], ids)
    fixed = (SPECS[0], TensorSpec("mask", "int64", (1, 4)))
    with pytest.raises(BadData, match="fixed at 4"):
        found(fixed, {**ids, "mask": [[1, 1, 0, 0]]})
    square = (*SPECS, TensorSpec("bias", "float32", ("b", "s", "s")))
    with pytest.raises(BadData, match="'bias' has the length 's' as another dimension"):
        found(square, {**ids, "mask": [[1, 1, 0, 0]], "bias": np.zeros((1, 4, 4))})
    with pytest.raises(BadData, match="no input 'gone'"):
        padding.find_padding(SPECS, [], mask="gone")


# --- proof, through workers ---------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_masked_encoder(tmp_path: Path, side: str) -> None:
    model = write(tmp_path / "toy.onnx")
    data = samples(tmp_path / "data", [3, 5, 9, 12, 20], side=side, width=LONG)
    got = buckets(model, data=data, on="cpu(threads=1)", multiple=1, count=9, seconds=0)
    assert (got.backend.mask, got.backend.inputs, got.backend.side) == ("mask", ("ids",), side)
    assert got.backend.outputs == ("tokens",), "pooled has no length"
    assert min(got.proof.snr_db.values()) >= 100
    assert set(got.backend.lengths) <= {3, 5, 9, 12, 20}
    assert got.least == pytest.approx(49 / (5 * LONG))
    assert got.measured is None


@pytest.mark.parametrize(
    ("outputs", "tail", "said"),
    [
        (POOLED, UNMASKED, "output 'pooled' changes when padding is cut"),
        ("float[b,s,s] shares", "", r"output 'shares' is \[1, 32, 32\] as padded and \[1, "),
    ],
)
def test_what_cannot_be_cut(tmp_path: Path, outputs: str, tail: str, said: str) -> None:
    model = write(tmp_path / "toy.onnx", outputs, tail)
    data = samples(tmp_path / "data", [4, 9])
    with pytest.raises(Refused, match=said) as caught:
        buckets(model, data=data, on="cpu(threads=1)", seconds=0)
    assert len(str(caught.value).splitlines()) == 2


def test_the_bar_can_be_lowered_and_a_backend_that_rounds_is_no_judge(tmp_path: Path) -> None:
    model = write(tmp_path / "toy.onnx", tail=UNMASKED)
    data = samples(tmp_path / "data", [4, 9], width=LONG)
    got = buckets(model, data=data, on="cpu(threads=1, fast_gelu=true)", least_db=-200, seconds=0)
    assert got.proof.snr_db["pooled"] < 100 <= got.proof.snr_db["tokens"]
    assert got.backend.inner == Cpu(fast_gelu=True)


def test_lengths_that_fill_the_width_gain_nothing() -> None:
    padded = padding.Padding("mask", ("ids",), "right", (31, 31, 30), (32, 32, 32))
    proof = Proof(Bucketed(), {}, 3)
    with pytest.raises(Refused, match=r"4.2 % of the positions are padding.*nothing to gain"):
        choose_buckets(proof, padded, 4, 8, {})
    got = choose_buckets(proof, padded, 4, 1, {})
    assert (got.backend.lengths, got.predicted, got.positions) == ((30, 31), 92 / 96, 92 / 96)
    with pytest.raises(Refused, match="nothing to gain"):
        choose_buckets(proof, padded, 4, 1, {30: 100, 32: 101})


# --- calls --------------------------------------------------------------------------------------

CUT = "bucketed(inner=cpu(threads=1), mask=mask, inputs=[ids], outputs=[tokens], lengths=[8, 16])"


def test_calls(tmp_path: Path) -> None:
    model = write(tmp_path / "toy.onnx")
    rng = np.random.default_rng(2)
    with ot.load(model, on="cpu(threads=1)") as plain, ot.load(model, on=CUT) as cut:
        assert cut.placement() == plain.placement() != {}
        for lengths, width, kept in [
            ([5], 32, 8),
            ([5, 13], 32, 16),
            ([16], 32, 16),
            ([17], 32, 32),
            ([5, 20], 32, 32),
            ([5], 8, 8),
            ([5], 7, 7),
        ]:
            mask = np.concatenate([row(n, width) for n in lengths])
            ids = rng.integers(1, 50, mask.shape)
            one, two = plain(ids=ids, mask=mask), cut(ids=ids, mask=mask)
            np.testing.assert_allclose(two["pooled"], one["pooled"], atol=1e-5)
            assert two["tokens"].shape == one["tokens"].shape
            np.testing.assert_allclose(
                two["tokens"][mask == 1], one["tokens"][mask == 1], atol=1e-5
            )
            assert not two["tokens"][:, kept:].any()
            assert two["tokens"][:, :kept].any(axis=2).all()


def test_what_is_not_sure_runs_as_it_is() -> None:
    cut = parse_plugin(Backend, CUT)
    assert isinstance(cut, Bucketed)
    ids = np.ones((1, 32), np.int64)
    assert cut.choose_bucket({"ids": ids, "mask": row(5)}) == 8
    assert cut.choose_bucket({"ids": ids, "mask": row(0)}) == 0, "a row of padding only"
    assert cut.choose_bucket({"ids": ids, "mask": row(5, side="left")}) == 0
    assert cut.choose_bucket({"ids": ids[:, :9], "mask": row(5)}) == 0, (
        "the runtime says what is wrong"
    )
    assert cut.choose_bucket({"ids": ids}) == 0
    assert cut.choose_bucket({"ids": ids, "mask": row(5)[0]}) == 0
    assert Bucketed().choose_bucket({"mask": row(5)}) == 0


def test_only_real_positions_are_compared() -> None:
    cut = parse_plugin(Backend, CUT)
    outputs = {"tokens": np.ones((1, 32, 8)), "pooled": np.ones((1, 32))}
    kept = cut.compared({"mask": row(5)}, outputs)
    assert kept["tokens"].shape == (1, 5, 8)
    assert kept["pooled"].shape == (1, 32)
    assert cut.compared({"mask": row(0)}, outputs) is outputs
    assert cut.compared_on == "real positions only"
    assert Cpu().compared_on == ""


# --- settings -----------------------------------------------------------------------------------


def test_settings() -> None:
    cut = parse_plugin(Backend, CUT)
    assert isinstance(cut, Bucketed)
    assert (cut.threads, cut.inner) == (1, Cpu())
    assert parse_plugin(Backend, str(cut)) == cut == codec.decode(Backend, codec.encode(cut))
    other = cut.wrap_backend(Cpu(threads=2, spin=False, custom_ops=("lib.so",)))
    assert (other.threads, other.inner, other.custom_ops) == (2, Cpu(spin=False), ("lib.so",))
    assert other.lengths == cut.lengths
    assert (other.provider, other.domains) == (Cpu.provider, Cpu.domains)
    assert cut.wrap_backend(Cpu(fast_gelu=True)).lossy


@pytest.mark.parametrize("lengths", ["[16, 8]", "[8, 8]", "[0, 8]"])
def test_lengths_rise(lengths: str) -> None:
    with pytest.raises(BadSettings, match="must rise"):
        parse_plugin(Backend, f"bucketed(mask=mask, lengths={lengths})")


def test_no_code_hides_in_the_inner_backend() -> None:
    """A bundle's settings are read by whoever opens it."""
    hidden = codec.encode(Bucketed()) | {"inner": codec.encode(Cpu(custom_ops=("evil.so",)))}
    with pytest.raises(BadSettings, match="must not name your own code"):
        codec.decode(Backend, hidden)


# --- the search, and the command line -----------------------------------------------------------


def test_verify_compares_real_positions_and_says_so(tmp_path: Path) -> None:
    model, data = write(tmp_path / "toy.onnx"), samples(tmp_path / "data", [3, 5, 12])
    same = ot.verify(model, model, data=data, budget="snr>=100", on=CUT)
    assert same.verdict == "proved"
    assert same.scores[0].basis.endswith("; real positions only")
    mean = write(tmp_path / "mean.onnx", tail=UNMASKED)
    other = ot.verify(mean, mean, data=data, budget="snr>=100", on=CUT)
    assert other.verdict == "fails"


@pytest.mark.long
def test_a_search_cuts_what_the_data_pad_and_the_bundle_does_too(tmp_path: Path) -> None:
    model = write(tmp_path / "toy.onnx")
    data = samples(tmp_path / "data", [3, 5, 9, 12, 6, 4] * 4, width=LONG)
    study = ot.optimize(
        model, data=data, on="cpu(threads=1)", budget="snr>=60", time=3, out=tmp_path / "run"
    )
    trial = next(t for t in study.trials if isinstance(t.plan.backend, Bucketed))
    assert trial.ratio is not None
    assert trial.ratio.high < 0.7, "512 positions against 16"
    assert trial.scores[0].basis.endswith("real positions only")
    packed = ot.pack(study, tmp_path / "toy.ortune", trial=trial.key, unconfirmed=True)
    mask, ids = row(5, LONG), np.full((1, LONG), 7)
    with ot.load(packed) as engine, ot.load(model) as plain:
        assert engine.backend == trial.plan.backend
        one, two = plain(ids=ids, mask=mask), engine(ids=ids, mask=mask)
    np.testing.assert_allclose(two["pooled"], one["pooled"], atol=1e-5)
    assert not two["tokens"][:, 16:].any()


def test_a_search_says_why_padding_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        root, models, feeds, evaluate = tmp_path, {"": tmp_path}, {"": tmp_path}, "f"

        class job:  # noqa: N801
            environment = ""
            baseline = Cpu()

    def refuse(*_: Any) -> None:
        raise error

    notes: list[str] = []
    monkeypatch.setattr(unpadded, "choose_position_buckets", refuse)
    error: OrtuneError = Refused("output 'y' changes", fix="leave it")
    assert unpadded.propose_buckets(Context, notes.append) is None  # type: ignore[arg-type]
    assert notes == ["padding is not cut: output 'y' changes"]
    error = BadData("no input is a mask", fix="name it")
    assert unpadded.propose_buckets(Context, notes.append) is None  # type: ignore[arg-type]
    assert len(notes) == 1, "most models have no mask"


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path / "toy.onnx")
    data = samples(tmp_path / "data", [3, 9, 17], width=LONG)
    report = tmp_path / "out.json"
    words = ["optimize", str(model), "--buckets", "--data", str(data), "--seconds", "0"]
    assert cli.main([*words, "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert codec.encode(parse_plugin(Backend, told["backend"]))["lengths"] == told["lengths"]
    assert told["outputs"] == ["tokens"]
    said = capsys.readouterr().out
    assert "zeros beyond the bucket: tokens" in said
    assert f'--on "{told["backend"]}"' in said.replace("\n", " ")
    for wrong in (words[:3], [*words, "--mask", "gone"]):
        assert cli.main(wrong) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2
        assert lines[1].startswith("  fix: ")
