"""Ceilings: the arithmetic on hand-made times, and one real measurement held to wide margins."""

from pathlib import Path

import onnx
import pytest

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.errors import OrtuneError
from ortune.core.plugins import codec
from ortune.core.profile import Ceilings
from ortune.measurement import peaks as subject
from ortune.measurement.peaks import FEW, MANY, PeakModel, write_peak_models

MB = 2**20


def test_each_figure_is_the_best_round_less_the_cost_of_a_call(tmp_path: Path) -> None:
    models = write_peak_models(tmp_path, 64 * MB, 4 * MB)
    call, step = 10_000, 250
    work = {
        "float512": 2_000_000,
        "float768": 9_000_000,
        "int8": 1_000_000,
        "memory-copy": 8_000_000,
        "memory-read": 2_000_000,
        "cache-copy": 100_000,
        "cache-read": 90_000,
        "few": FEW * step,
        "many": MANY * step,
    }
    times = {name: [3 * ns + call, ns + call, 2 * ns + call] for name, ns in work.items()}
    found = subject.compute_ceilings(Cpu(threads=3), models, times, 32 * MB)
    assert found.flops["float32"] == pytest.approx(1e9 * 2 * 512**3 / 2_000_000)
    assert found.flops["int8"] == pytest.approx(1e9 * 2 * 512 * 1024 * 1024 / 1_000_000)
    assert found.bandwidth == pytest.approx(1e9 * 128 * MB / 8_000_000)
    assert found.read_bandwidth == pytest.approx(1e9 * 64 * MB / 2_000_000)
    assert found.cache_bandwidth == pytest.approx(1e9 * 8 * MB / 100_000)
    assert found.overhead_ns == pytest.approx(step)
    assert (found.threads, found.cache_bytes) == (3, 32 * MB)
    assert found.spread["bandwidth"] == pytest.approx(8 / 8.01, rel=0.01)
    bf16 = subject.compute_ceilings(Openvino(precision="bf16"), models, times, 32 * MB)
    assert set(bf16.flops) == {"bfloat16", "int8"}


def test_the_models_do_what_they_say(tmp_path: Path) -> None:
    from ortune.graph.analysis.facts import read_facts
    from ortune.graph.io import file

    models = write_peak_models(tmp_path, 64 * MB, 4 * MB)
    for name, model in models.items():
        onnx.checker.check_model(str(tmp_path / f"{name}.onnx"))
        if model.flops:
            known = read_facts(file.load(tmp_path / f"{name}.onnx")).flops
            assert known is not None and 1 <= known / model.flops < 1.01
    assert models["memory-copy"].size == 2 * models["memory-read"].size == 128 * MB


def test_this_machine_is_ordered_as_every_machine_is() -> None:
    """Margins are wide: only a figure that means something else can leave them."""
    found = subject.measure_ceilings(Cpu(threads=1), seconds=0.4)
    assert 1e9 < found.flops["float32"] < 1e13
    assert found.bandwidth <= found.read_bandwidth < 1e13
    assert found.bandwidth <= found.cache_bandwidth < 1e14
    assert 10 < found.overhead_ns < 1e6
    assert codec.decode(Ceilings, codec.encode(found)) == found


def test_a_backend_that_does_not_run_the_models_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_text(folder: Path, *sizes: int) -> dict[str, PeakModel]:
        (folder / "few.onnx").write_text("no model")
        return {"few": PeakModel((1, 8))}

    monkeypatch.setattr(subject, "write_peak_models", only_text)
    with pytest.raises(OrtuneError, match="ceilings of cpu"):
        subject.measure_ceilings(Cpu(threads=1))


def test_the_cache_is_the_largest_one(tmp_path: Path) -> None:
    assert subject.last_level_cache(tmp_path) == 16 * MB
    for index, size in enumerate(("32K", "1024K", "48M", "what")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert subject.last_level_cache(tmp_path) == 48 * MB
