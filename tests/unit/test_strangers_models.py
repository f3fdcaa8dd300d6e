"""Models as strangers bring them: right, or refused in two lines."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortune.backends.cpu import Cpu
from ortune.cli.main import main
from ortune.core.capabilities import Capabilities
from ortune.core.step import Quantizer
from ortune.graph.analysis.facts import count_weight_bytes, read_facts
from ortune.graph.io import file
from ortune.search.recipe.space import list_recipes
from tests import strangers, strangers_runtime
from tests.strangers import Arrays, Stranger

KINDS = {
    "hidden errors": strangers.HIDDEN_ERRORS,
    "wide values": strangers.WIDE,
    "not finite": strangers.NOT_FINITE,
    "random": strangers.RANDOM,
    "tied": strangers.TIED,
    "shadows": strangers.SHADOWS,
    "opsets": strangers_runtime.OPSETS,
    "folds": strangers_runtime.FOLDS,
    "advice": strangers_runtime.ADVICE,
    "made up": strangers_runtime.MADE_UP,
    "nothing float": strangers_runtime.NOTHING_FLOAT,
}
RUNS = [
    pytest.param(stranger, command, outcome, id=f"{kind}: {stranger.name}: {command}")
    for kind, models in KINDS.items()
    for stranger in models
    for command, outcome in stranger.outcomes.items()
]


def save(proto: onnx.ModelProto, folder: Path, *, external: bool) -> Path:
    folder.mkdir(parents=True)
    path = folder / "m.onnx"
    onnx.save_model(
        proto, path, save_as_external_data=external, location="w.bin", size_threshold=256
    )
    return path


def answers(path: Path, feeds: list[Arrays]) -> list[list[np.ndarray]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(feed)) for feed in feeds]


def measure_snr_db(expected: list[list[np.ndarray]], found: list[list[np.ndarray]]) -> float:
    """Return the least of all outputs; minus infinity where one is not finite that should be."""
    least = 200.0
    for one, two in zip(chain(*expected), chain(*found), strict=True):
        assert one.shape == two.shape and one.dtype == two.dtype
        if one.dtype.kind != "f":
            least = least if (one == two).mean() > 0.99 else -200.0
            continue
        clean, noisy = one[np.isfinite(one)].astype("f8"), two[np.isfinite(one)].astype("f8")
        if not np.isfinite(noisy).all():
            return -np.inf
        noise = ((clean - noisy) ** 2).sum()
        least = min(least, 10 * np.log10(((clean**2).sum() + 1e-30) / (noise + 1e-30)))
    return float(least)


@pytest.mark.parametrize(("stranger", "command", "outcome"), RUNS)
def test_it_is_right_or_refused_in_two_lines(
    stranger: Stranger,
    command: str,
    outcome: float | str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = save(stranger.build(), tmp_path / "M", external=stranger.external)
    (tmp_path / "D").mkdir()
    for number, feed in enumerate(stranger.feeds):
        np.savez(tmp_path / "D" / f"{number}.npz", **dict(feed))  # type: ignore[arg-type]
    places = {"M": str(path), "O": str(tmp_path / "o.onnx"), "D": str(tmp_path / "D")}
    status = main([places.get(word, word) for word in shlex.split(command)])
    printed, told = capsys.readouterr()
    assert stranger.unsaid not in printed + told
    if isinstance(outcome, str):
        what, fix = told.splitlines()[-2:]
        assert status == 2 and outcome in what and fix.startswith("  fix: ")
        assert not (tmp_path / "o.onnx").exists()
        return
    assert status == 0, told
    assert command.startswith("inspect") or stranger.said in printed + told
    if (tmp_path / "o.onnx").exists():
        if stranger.share is not None:
            before, after = (count_weight_bytes(file.load(p)) for p in (path, tmp_path / "o.onnx"))
            assert after <= stranger.share * before
        if stranger.feeds:
            check_answers(stranger, path, tmp_path / "o.onnx", outcome)


def check_answers(stranger: Stranger, path: Path, out: Path, least_db: float) -> None:
    """Compare with the source, lowered where the runtime reads nothing so new."""
    feeds = list(stranger.feeds)
    if stranger.outcomes is strangers_runtime.NEW:
        path = path.with_name("lowered.onnx")
        assert (
            main(["apply", str(path.with_name("m.onnx")), "lower-opset(to=21)", "-o", str(path)])
            == 0
        )
    assert measure_snr_db(answers(path, feeds), answers(out, feeds)) >= least_db


@pytest.mark.parametrize("stranger", strangers_runtime.NOTHING_FLOAT, ids=lambda one: one.name)
def test_nothing_is_offered_where_no_weight_is_float(stranger: Stranger, tmp_path: Path) -> None:
    path = save(stranger.build(), tmp_path / "M", external=False)
    facts = read_facts(file.load(path))
    assert not facts.has_float_layers
    recipes = list_recipes(facts, Cpu(), Capabilities(instruction_sets=("avx2", "avx512_vnni")))
    steps = [step for recipe in recipes for step in recipe.steps]
    assert not any(isinstance(step, Quantizer) for step in steps)


PAIR = """<ir_version: 8, opset_import: ["": 17]> g (float[b,64] x) => (float[b,64] y) {
    h = MatMul(x, w) y = MatMul(h, v) }"""


def link_two_files(plain: Path, root: Path) -> Path:
    """As the Hugging Face cache does, with a file for every weight."""
    (root / "blobs").mkdir()
    (root / "snapshots" / "0a").mkdir(parents=True)
    for number, entry in enumerate(sorted(plain.parent.iterdir())):
        entry.rename(root / "blobs" / f"{number}aa")
        (root / "snapshots" / "0a" / entry.name).symlink_to(f"../../blobs/{number}aa")
    return root / "snapshots" / "0a" / plain.name


def link_folder(plain: Path, root: Path) -> Path:
    (root / "latest").symlink_to(plain.parent)
    return root / "latest" / plain.name


def link_links(plain: Path, root: Path) -> Path:
    first = link_two_files(plain, root)
    (root / "again").mkdir()
    for entry in first.parent.iterdir():
        (root / "again" / entry.name).symlink_to(entry)
    return root / "again" / plain.name


def link_outside(plain: Path, root: Path) -> Path:
    path = link_two_files(plain, root)
    data = path.with_name("w")
    data.resolve().rename(root / "elsewhere")
    data.unlink()
    data.symlink_to(root / "elsewhere")
    return path


def link_nothing(plain: Path, root: Path) -> Path:
    path = link_two_files(plain, root)
    path.with_name("w").resolve().unlink()
    return path


@pytest.mark.parametrize(
    ("link", "refusal"),
    [
        (link_two_files, ""),
        (link_folder, ""),
        (link_links, ""),
        (link_outside, "refers to data outside its folder: 'w'"),
        (link_nothing, "is missing: 'w'"),
    ],
)
def test_models_behind_links(
    link: Callable[[Path, Path], Path],
    refusal: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = {"w": strangers.normal(64, 64, scale=0.1), "v": strangers.normal(64, 64, scale=0.1)}
    (tmp_path / "plain").mkdir()
    proto = Stranger("", PAIR, weights, [], {}).build()
    plain = tmp_path / "plain" / "m.onnx"
    onnx.save_model(
        proto, plain, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0
    )
    feeds = list(strangers.samples(x=(2, 64)))
    expected = answers(plain, feeds)
    path, out = str(link(plain, tmp_path)), tmp_path / "o.onnx"
    for words, least_db in (
        (["inspect", path], 0.0),
        (["convert", path, str(out)], 100.0),
        (["apply", path, "int8-dynamic", "-o", str(out)], 20.0),
        (["verify", path, path], 0.0),
        (["extract", path, "--to", "h", "-o", str(out)], None),
    ):
        out.unlink(missing_ok=True)
        status = main(words)
        told = capsys.readouterr().err
        if refusal:
            what, fix = told.splitlines()[-2:]
            assert status == 2 and refusal in what and fix.startswith("  fix: ")
        else:
            assert status == 0, told
            if out.exists() and least_db is not None:
                assert measure_snr_db(expected, answers(out, feeds)) >= least_db
