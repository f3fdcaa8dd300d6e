"""Every value, name and spelling that a fix gives is taken where it is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortune.analysis.benchmark.requests import Thresholds
from ortune.analysis.calibration_quality.calibrate import parse_quantizer
from ortune.analysis.conversion.requests import Convert, PictureSize
from ortune.backends.runtimes.onnxruntime import checks
from ortune.bundle.pack import pack
from ortune.bundle.target import Target
from ortune.core.augmentation import Augmentation
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.facts import TensorSpec
from ortune.core.fields import ByteSize, Counts, Duration, InputRanges, InputShapes
from ortune.core.hardware.instances import read_instances
from ortune.core.metric import Metric
from ortune.core.observer import Observer
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.reading import read_step
from ortune.core.workload import Workload
from ortune.data.sequences.request import SequenceForm
from ortune.data.sequences.rolling import parse_state_pairs
from ortune.data.synthetic import require_input_names
from ortune.exporters.request import DynamicAxes, InputSpecs
from ortune.measurement import devices, environment
from ortune.measurement.environments import releases
from ortune.metrics.common.outputs import select_outputs
from ortune.quantizers.calibration import ranges_file
from ortune.reporting.explanation.explain import explain
from ortune.search.request import Optimize
from ortune.serving.load_testing.requests import PercentileLimit, Rates, ServerUrl
from ortune.serving.server.listeners import resolve_host
from tests.unit import studies
from tests.unit.following import Room, Value, follow_value
from tests.unit.quantizing import model_of, normal

H, Y = (TensorSpec(name, "float32", (1, 4)) for name in "hy")
MODEL = "g (float[b, 32] x) => (float[b, 32] y) { m = MatMul(x, w) y = Relu(m) }"
FIXED = "g (float[2, 8] x) => (float[2, 8] y) { y = Relu(x) }"
OUTPUTS = "g (float[b, 8] x) => (float[b, 8] y, float[b, 8] z) { y = Relu(x) z = Abs(x) }"
IMAGE = "g (float[1, 1, 6, 6] x) => (float[1, 1, 6, 6] y) { y = Relu(x) }"
CHANNELS = "g (float[b, 3, h, w] x) => (float[b, 3, h, w] y) { y = Relu(x) }"
IMAGES = """g (float[1, 3, 6, 6] x, float[1, 3, 6, 6] z) => (float[1, 3, 6, 6] y) {
    y = Add(x, z) }"""
FUNCTION = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
g (float[b, 8] x) => (float[b, 8] y) { y = own.twice(x) }
<domain: "own", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }"""


def apply(text: str, step: str) -> object:
    """Apply a step, as it is spelled, to a model."""
    weights = {"w": normal(32, 32)} if " w)" in text else {}
    return read_step(step).apply(model_of(text, weights))


def exclude(name: str) -> None:
    """Leave a node of two out of a quantization."""
    two = MODEL.replace("y = Relu(m)", "y = MatMul(m, v)")
    model = model_of(two, {"w": normal(32, 32), "v": normal(32, 32)})
    for number, node in enumerate(model.graph):
        node.name = f"layer{number}"
    read_step(f'int8-dynamic(exclude=["{name}"])').apply(model, {})


def step(text: str, spelled: str, wrong: str, said: str, then: str = "") -> Value:
    """Return a value of a step's field: it stands at the place of `$`."""
    return Value(lambda _, value: apply(text, spelled.replace("$", value)), wrong, said, then)


def spell(kind: Any, spelled: str, wrong: str, said: str, then: str = "") -> Value:
    """Return a value in the spelling of a plugin: it stands at the place of `$`."""
    return Value(
        lambda _, value: parse_plugin(kind, spelled.replace("$", value)), wrong, said, then
    )


def read(act: Any, wrong: str, said: str, then: str = "") -> Value:
    """Return a value that a function reads."""
    return Value(lambda _, value: act(value), wrong, said, then)


def read_toml(said: str, wrong: str, text: str = "$") -> Value:
    """Return a value in an inventory of devices."""
    return Value(
        lambda room, value: devices.read_inventory(room.write("d.toml", text.replace("$", value))),
        wrong,
        said,
    )


WORD = r"[a-z][\w-]*(?=,|$)"
STEPS = {
    "an axis of an input": step(FIXED, "free-dims(dims=[x.$:b])", "7", r"\d+"),
    "a dimension": step(MODEL, "fix-dims(dims=[$:2])", "zz", r"(?:there: |any: )([\w.]+)"),
    "a size of 0": step(MODEL, "fix-dims(dims=[b:$])", "0", r"\d+"),
    "two batches": step(
        "g (float[2, 8] x, float[3, 8] z) => (float[2, 8] y, float[3, 8] v) {"
        " y = Relu(x) v = Abs(z) }",
        "$",
        "free-dims",
        r"free-dims\(.+\)",
    ),
    "an output to fold into": step(
        OUTPUTS, "fold-postprocess(give=argmax, output=$)", "q", r"\b\w(?=,|$)"
    ),
    "a k of 0": step(OUTPUTS, "fold-postprocess(give=top-k, output=y, k=$)", "0", r"\d+"),
    "an axis of an output": step(
        OUTPUTS, "fold-postprocess(give=argmax, output=y, axis=$)", "7", r"-?\d+"
    ),
    "an input of pictures": step(IMAGES, "fold-preprocess(input=$)", "q", r"\b\w(?=,|$)"),
    "channels of a picture": step(
        IMAGE, "fold-preprocess(channels=$)", "rgb", r'channels = "(\w+)"'
    ),
    "a way to resize": step(
        CHANNELS,
        "fold-preprocess(resize=[8, 8], interpolation=$)",
        "lanczos",
        r"\b(?:nearest|bilinear|bicubic)\b",
    ),
    "a size to resize to": step(
        IMAGE, "fold-preprocess(channels=gray, resize=$)", "[8, 8]", r"resize = (\[.+?\])"
    ),
    "a function": step(FUNCTION, "inline-functions(only=[$])", "thrice", r": (\w+)"),
    "an IR version": step(FIXED, "ir-version(to=$)", "99", r"\d+", "IR version 3 has no"),
    "no IR version": step(FIXED, "$", "ir-version", r'"(.+)"'),
    "an old opset": step(FIXED, "lower-opset(to=$)", "3", r"\d+"),
    "a width of channels": step(FIXED, "widen-groups(channels=$)", "0", r"\d+"),
    "a size of blocks": read(lambda size: read_step(f"int4-weights(block={size})"), "17", r"\d+"),
    "a pattern of nodes": read(exclude, "q*", r"such as ([\w-]+)"),
}
TARGETS = {
    "a storage": spell(Target, 'kserve(storage="$")', "models", r"\w+://[\w/]+"),
    "an amount of memory": spell(Target, 'kserve(memory="$")', "2 apples", r"\d\w+"),
    "a release of Triton": spell(Target, "triton(release=$)", "1.01", r"\d\d\.\d\d(?=,)"),
    "no instance": spell(Target, "triton($)", "instances=0", r"instances=\d"),
    "no device": spell(Target, 'triton(instances="2@$")', "npu", r"\b[cg]pu\d*"),
    "no GPU": spell(Target, "triton(accelerator=tensorrt, $)", "batch=8", r"gpus=\[0\]"),
    "no accelerator": spell(
        Target,
        'triton(gpus=[0], options=["a=b"], $)',
        "batch=8",
        r"accelerator=\w+",
        "no option 'a'",
    ),
    "an option of an accelerator": spell(
        Target,
        'triton(gpus=[0], accelerator=tensorrt, options=["$"])',
        "precision=FP16",
        r"\w+(?=,|$)",
        "is no value of",
    ),
    "a value of an option": spell(
        Target,
        'triton(gpus=[0], accelerator=tensorrt, options=["precision_mode=$"])',
        "FP4",
        r"[A-Z]+\d+",
    ),
    "a preferred batch": spell(Target, "triton(batch=4, preferred=[$])", "0", r"\d+"),
    "a name of an axis": step(FIXED, "free-dims(dims=[x.0:$])", "1", r"such as (\w+)"),
    "no batch": spell(Target, "triton(delay_us=5, $)", "batch=0", r"batch=\d+"),
}
SPELLED = {
    "CPUs of threads": read(checks.parse_affinity, "a", r'"(.+)"'),
    "a setting of a session": read(lambda text: checks.parse_config([text], {}), "a", r"\S+=\S+"),
    "a choice of numbers": read(lambda n: checks.check_choices((1, 2), a=int(n)), "3", r"\d+"),
    "a least number": read(lambda n: checks.check_minimum(1, a=int(n)), "0", r"\d+"),
    "noise": spell(Augmentation, "$", "noise(sigma=-1)", r"noise\([^)]+\)"),
    "noise twice the signal": spell(Augmentation, "$", "noise(sigma=0)", r"noise\([^)]+\)"),
    "a range of factors": spell(Augmentation, "$", "scale(low=2, high=1)", r"scale\([^)]+\)"),
    "a budget": read(Budget.parse, "zzz", r"\S+>=\S+", "metric"),
    "a budget of another sign": read(Budget.parse, "cosine<=0.9", r"\S+>=\S+"),
    "steps that do not loosen": read(Budget.parse, "cosine>=0.9|0.99", r"cosine\S+"),
    "a size": read(ByteSize(None).read, "much", r"\d+[MG]"),
    "a shape": read(lambda text: InputShapes(None).read([text]), "x", r"\S+:\S+"),
    "a range": read(lambda text: InputRanges(None).read([text]), "x", r"\S+:\S+"),
    "counts": read(Counts(None).read, "a", r"\d\S*"),
    "a duration": read(Duration("1s").read, "soon", r"\d+\w+"),
    "instances": read(read_instances, "much", r"\d[^\s]*(?=,\s|$)"),
    "a misspelled step": read(read_step, "int8-statik", r"write ([\w-]+)"),
    "a misspelled metric": spell(Metric, "$", "cosin", r"write ([\w-]+)"),
    "a misspelled backend": spell(Backend, "$", "cpuu", r"write ([\w-]+)"),
    "a misspelled observer": spell(Observer, "$", "minmax", r"write ([\w-]+)"),
    "a misspelled workload": spell(Workload, "$", "latenci", r"write ([\w-]+)"),
    "a misspelled target": spell(Target, "$", "tritan", r"write ([\w-]+)"),
    "an unknown metric": spell(Metric, "$", "qqqqqq", WORD),
    "a misspelled field": spell(Backend, "cpu($=1)", "thread", r"write (\w+)"),
    "a choice of words": spell(
        Backend, "cpu(level=$)", "much", r"\b(?:none|basic|extended|layout|all)\b"
    ),
    "a device of OpenVINO": spell(
        Backend, "$", "openvino(device=npu, precision=f32)", r"openvino\([^)]+\)"
    ),
    "a name of an environment": read(environment.environment_folder, "A/b", r"such as (\S+)"),
    "a release": read(releases.parse_release, "qq", r"[a-z][a-z-]+(?:==[\d.]+)?(?=,|$)"),
    "a version of a release": read(
        lambda text: releases.parse_release(f"onnxruntime=={text}"), "9.9", r"\d+\.\d+\.\d+"
    ),
    "releases": read(releases.select_releases, "a..b", r"1\S+(?<!,)"),
    "a version of TensorRT": read(ranges_file.encode_version, "x", r"\d\S+"),
    "a sequence": read(SequenceForm("").read, "?", r"\b(?:file|group)\b"),
    "a server": read(
        lambda text: ServerUrl.parse(text.replace("HOST:PORT", "127.0.0.1:8000")),
        "q",
        r"\w+://[A-Z:]+",
    ),
    "a percentile": read(PercentileLimit.parse, "q", r'"(.+)"'),
    "a threshold": read(
        lambda text: Thresholds(None).read([text]), "q", r"p99=\d+%|(?<!=)\b\d[\d.]*%?"
    ),
    "a threshold above 1": read(lambda text: Thresholds(None).read([text]), "5", r"\d+%"),
    "a size of pictures": read(PictureSize(None).read, "q", r"\d+x\d+"),
    "an input of a module": read(lambda text: InputSpecs(None).read([text]), "q", r"\S+:f32"),
    "an axis of a module": read(lambda text: DynamicAxes(None).read([text]), "q", r"\S+=\S+"),
    "rates": read(Rates(None).read, "q", r"\d\S+"),
    "rates of 0": read(Rates(None).read, "0", r"\d\S+"),
    "a host of a device": read_toml(r'(host = ".+?")', "a = 1", "[pi5]\n$\n"),
}


def pack_licensed(room: Room, licence: str) -> None:
    pack(studies.study(room.folder / licence), room.folder / "b.ortune", licence=licence)


def pack_trial(room: Room, key: str) -> None:
    pack(studies.study(room.folder / f"of {key}"), room.folder / f"{key}.ortune", trial=key)


def explain_plan(room: Room, plan: str) -> None:
    explain(studies.write_run(studies.study(room.folder / f"of {plan}")), plan=plan)


MORE = {
    "a field without effect": spell(
        Backend, "openvino($, streams=2)", "device=auto", r"device=\w+"
    ),
    "a list": spell(Backend, "cpu(config=$)", "a", r"\[.+\]", "cannot read the setting"),
    "too few threads": spell(Backend, "cpu(threads=$)", "-1", r"\d+"),
    "too many threads": spell(Backend, "cpu(threads=$)", "99999999", r"\d+", "CPUs|threads"),
    "a method without a form": read(
        lambda text: read_step(f"int8-weights(method=hqq, {text})"), "fold=false", r"form=\w+"
    ),
    "an environment": read(environment.find_interpreter, "her", r"write (\w+)"),
    "a quantizer that does not calibrate": read(
        lambda text: parse_quantizer(text, "mse"), "int8-dynamic", r'such as "(.+)"'
    ),
    "an output of a metric": read(
        lambda name: select_outputs(dict.fromkeys("yz", np.ones(1)), name), "q", r"\b[yz]\b"
    ),
    "an input of a shape": read(
        lambda name: require_input_names([H, Y], {name: (1, 4)}, {}), "q", r"\b[hy]\b"
    ),
    "a precision": read(
        lambda word: Convert("m.onnx", "o.onnx", precision=word), "int9", r"\b\w*\d+\b"
    ),
    "a setting of a device": read_toml(
        r"write (\w+)", "pythn", '[pi5]\nhost = "pi@pi5"\n$ = "python3"\n'
    ),
    "releases that are not there": read(releases.select_releases, "9.1..9.2", r"\d+\.\d+\.\d+"),
    "a device of instances": read(
        lambda name: read_instances(f"2@{name}"), "tpu0", r"(?:cpu|[gn]pu)\d*"
    ),
    "a share of samples": read(
        lambda share: parse_plugin(Metric, f"snr(share={share})"), "2", r"\d", "share"
    ),
    "tokens to generate": spell(Workload, "generate(tokens=$)", "1", r"\d+"),
    "a batch of 0": read(lambda n: Optimize("m.onnx", batches=(int(n),)), "0", r"\d+"),
    "a host": read(resolve_host, "no-host.invalid", r"\d+\.\d+\.\d+\.\d+"),
    "a state": read(
        lambda name: parse_state_pairs([f"{name}:h"], [H], [Y, replace(H, name="h_out")]),
        "q",
        r"\b[a-z_]+(?=,|$)",
        "y",
    ),
    "a licence": Value(pack_licensed, "my own!", r"such as ([\w.-]+)"),
    "a trial": Value(pack_trial, "zz", r"\b[0-9a-f]{8}\b", "confirmed|faster|rejected|plan"),
    "a plan": Value(explain_plan, "zzz", r"\b\d\b"),
}
VALUES = STEPS | TARGETS | SPELLED | MORE


@pytest.mark.parametrize("name", VALUES)
def test_what_a_fix_spells_is_taken(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    follow_value(VALUES[name], Room(tmp_path, monkeypatch))
