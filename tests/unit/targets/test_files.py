"""Packages of plain files: the model goes where it is meant to, and answers as it did."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import packaged, studies, texts

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.engine.manifest import HUB, Arithmetic, Signature
from ortune.bundle.pack import Packaged, pack, package
from ortune.bundle.target import Source
from ortune.core import hub
from ortune.core.errors import BackendMissing, BadSettings, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.targets.genai import Genai, build_config
from ortune.targets.huggingface import HuggingFace, build_card, list_names, read_evidence
from ortune.targets.onnx import OnnxFile
from ortune.targets.ort_mobile import OrtMobile
from ortune.targets.web import WebPage


def made(folder: Path, target: str, name: str = "out") -> Packaged:
    return package([packaged.bundle(folder)], folder / name, target)


def test_the_plain_file(tmp_path: Path) -> None:
    found = made(tmp_path, "onnx")
    held = packaged.contents(found.path)
    assert {"python/run.py", "cpp/run.cc", "cpp/ort_api.h", "javascript/run.js"} <= set(held)
    assert {"model/model.onnx", "check/0/inputs.txt", "check/1/output_0.bin"} <= set(held)
    assert found.replay is not None and found.replay.difference_db == float("inf")
    assert json.loads(held["settings.json"])["threads"] == 1
    assert "C++ and JavaScript" in found.unrun


@pytest.mark.parametrize("target", ["onnx", "ort-mobile", "huggingface"])
def test_the_same_bytes_without_places(tmp_path: Path, target: str) -> None:
    bundle = packaged.bundle(tmp_path)
    spelled = (
        target.replace(")", ", replayed=false)") if "(" in target else f"{target}(replayed=false)"
    )
    one, two = (package([bundle], tmp_path / name, spelled).path for name in ("one", "two"))
    assert packaged.contents(one) == packaged.contents(two)
    for name, data in packaged.contents(one).items():
        assert str(tmp_path).encode() not in data or name.endswith("model.ortune"), name
        assert b"/tmp/ortune-" not in data, name


def test_settings_of_a_decoder_for_onnxruntime_genai(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with packaged.source(tmp_path) as source:
        assert "no decoder" in Genai().refuses(source)
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
        settings = texts.make_folder(
            source.folder / HUB,
            architectures=["LlamaForCausalLM"],
            **{**sizes, "vocab_size": 50, "max_position_embeddings": 64, "eos_token_id": [7, 9]},
        )
        assert "it has no input_ids" in Genai().refuses(source)
        past = [f"{at}.{part}" for at in range(3) for part in ("key", "value")]
        inputs = ["input_ids", "position_ids", *(f"past_key_values.{name}" for name in past)]
        outputs = ["logits", *(f"present.{name}" for name in past)]
        sides = (tuple(TensorSpec(n, "float32", None) for n in side) for side in (inputs, outputs))
        signatures = {"": Signature(*sides)}
        source = replace(source, manifest=replace(source.manifest, signatures=signatures))
        assert Genai().refuses(source) == ""
        config = build_config(source, settings, False)
        own = {"model": {"type": "phi", "decoder": {"filename": "old.onnx", "head_size": 3}}}
        (settings.folder / hub.GENAI).write_text(json.dumps(own))
        kept = build_config(source, settings, False)["model"]
    model, decoder = config["model"], config["model"]["decoder"]
    assert (model["eos_token_id"], model["context_length"], model["vocab_size"]) == (
        [7, 9],
        64,
        50,
    )
    assert (decoder["head_size"], decoder["num_key_value_heads"]) == (8, 2)
    assert (decoder["hidden_size"], decoder["num_hidden_layers"]) == (32, 3)
    assert decoder["inputs"]["past_key_names"] == "past_key_values.%d.key"
    assert "position_ids" in decoder["inputs"] and "attention_mask" not in decoder["inputs"]
    assert decoder["session_options"]["intra_op_num_threads"] == 1
    assert kept["type"] == "phi"
    assert (kept["decoder"]["filename"], kept["decoder"]["head_size"]) == ("model.onnx", 3)


@pytest.mark.parametrize("target", [OnnxFile(), OrtMobile(), HuggingFace(), WebPage()])
def test_what_other_runtimes_do_is_refused(
    tmp_path: Path, target: OnnxFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with packaged.source(tmp_path) as source:
        elsewhere = replace(source, backend=Openvino())
        assert "it runs on 'openvino'" in target.refuses(elsewhere)
        custom = replace(source, plan=replace(source.plan, custom_ops=("custom_ops/x.so",)))
        assert "custom operators" in target.refuses(custom)
        assert "'t' is str" in target.refuses(with_text(source))
        assert target.refuses(source) == ""


def with_text(source: Source) -> Source:
    spec = TensorSpec("t", "str", (1,))
    signature = Signature((spec,), ())
    return replace(source, manifest=replace(source.manifest, signatures={"": signature}))


def test_external_data_lies_beside(tmp_path: Path) -> None:
    with packaged.source(tmp_path) as source:
        outer = packaged.external(source)
        out = tmp_path / "out"
        out.mkdir()
        OnnxFile().write(outer, out)
        assert (out / "model" / "w.bin").stat().st_size == 16
        found = OnnxFile().replay(outer, out)
        assert found is not None and found.difference_db == float("inf")
        (out / "model" / "w.bin").write_bytes(bytes(16))
        changed = OnnxFile().replay(outer, out)
        assert changed is not None and changed.difference_db < 40


def test_two_models(tmp_path: Path) -> None:
    with packaged.source(tmp_path) as source:
        pair = packaged.pair(source)
        for target in (OnnxFile(), OrtMobile()):
            out = tmp_path / target.name()
            out.mkdir()
            target.write(pair, out)
            found = target.replay(pair, out)
            assert found is not None and found.difference_db == float("inf")
        assert (tmp_path / "onnx" / "model" / "decode" / "model.onnx").is_file()
        assert (tmp_path / "ort-mobile" / "encode.ort").is_file()


@pytest.mark.parametrize("style", ["fixed", "runtime"])
def test_a_file_for_phones(tmp_path: Path, style: str) -> None:
    bundle = packaged.bundle(tmp_path, Cpu(threads=1, disable=("BiasGeluFusion",)))
    found = package([bundle], tmp_path / "out", f"ort-mobile(style={style})")
    assert any("BiasGeluFusion" in line for line in found.lines)  # the converter takes no such
    held = packaged.contents(found.path)
    assert held["toy.ort"][4:8] == b"ORTM"
    listed = held["required_operators_and_types.config"].decode()
    assert "ai.onnx;14;Add" in listed and "float" in listed and str(tmp_path) not in listed
    entries = json.loads(held["settings.json"])["entries"]
    assert ("session.enable_saved_runtime_optimizations" in entries) == (style == "runtime")
    assert "optimization.disable_specified_optimizers" not in entries
    assert found.replay is not None and found.replay.difference_db == float("inf")
    assert "a phone" in found.unrun


def test_a_folder_for_the_hub(tmp_path: Path) -> None:
    found = made(tmp_path, 'huggingface(licence="Apache-2.0", base_model="who/what")')
    held = packaged.contents(found.path)
    card = held["README.md"].decode()
    front = card.split("---\n")[1]
    assert 'library_name: onnx\nlicense: apache-2.0\nbase_model: "who/what"\n' in front
    assert "- ortune\n" in front
    assert "| clean @ cpu(threads=1) | 0.520 | 0.510 to 0.535 | 1.92x |" in card
    assert "cosine is 0.9995 on 32 samples, of the original 1." in card
    assert "**proved**" in card and "| cpu |" in card and "| onnxruntime |" in card
    assert json.loads(held["settings.json"])["threads"] == 1
    assert found.replay is not None and found.replay.difference_db == float("inf")


def test_what_lay_beside_a_model_of_the_hub_goes_back(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    settings = texts.make_folder(tmp_path / "hub-folder", similarity=True)
    study = studies.study(tmp_path)
    hub.copy_side_files(settings, Path(study.root) / "hub")
    out = package([pack(study, tmp_path / "toy.ortune")], tmp_path / "out", "huggingface").path
    held = packaged.contents(out)
    for name in ("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"):
        assert held[name] == (settings.folder / name).read_bytes()
    front = held["README.md"].decode().split("---\n")[1]
    assert "library_name: sentence-transformers\npipeline_tag: sentence-similarity\n" in front


def test_names_say_where_a_precision_is_right() -> None:
    assert list_names(Arithmetic()) == ()
    assert list_names(Arithmetic(halves=("float16",))) == ("model_fp16.onnx",)
    assert list_names(Arithmetic(integers=9, risky=1)) == ("model_qint8_avx512_vnni.onnx",)
    anywhere = list_names(Arithmetic(integers=9))
    assert {"model_qint8_avx512_vnni.onnx", "model_quint8_avx2.onnx"} < set(anywhere)


def test_a_card_is_no_program(tmp_path: Path) -> None:
    with packaged.source(tmp_path) as source:
        hostile = Signature((TensorSpec("<img src=x>|`\n# x", "float32", (1, "<b>")),), ())
        source = replace(source, manifest=replace(source.manifest, signatures={"": hostile}))
        text = build_card(source, read_evidence(source), "Mine: 1\nlicense: mit", "", "run")
    assert "<img" not in text and "<b>" not in text and "\n# x" not in text
    assert 'license: other\nlicense_name: "Mine: 1\\nlicense: mit"\n' in text


def test_a_licence_that_nobody_said(tmp_path: Path) -> None:
    found = made(tmp_path, "huggingface(replayed=false)")
    assert "names no licence" in found.lines[-1]
    assert "\nlicense:" not in (found.path / "README.md").read_text(encoding="utf-8")


def npm(folder: Path, version: str = "1.30.0") -> Path:
    """Make what looks like the npm package."""
    (folder / "dist").mkdir(parents=True)
    for name in ("ort.wasm.min.mjs",):
        (folder / "dist" / name).write_text(f"// {name}\n", encoding="utf-8")
    for name in ("mjs", "wasm"):
        (folder / "dist" / f"ort-wasm-simd-threaded.{name}").write_bytes(name.encode())
    held = {"name": "onnxruntime-web", "version": version}
    (folder / "package.json").write_text(json.dumps(held), encoding="utf-8")
    return folder


def test_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    runtime = npm(tmp_path / "node_modules" / "onnxruntime-web")
    target = WebPage(runtime=str(runtime), replayed=False)
    found = package([packaged.bundle(tmp_path)], tmp_path / "out", target)
    held = packaged.contents(found.path)
    page = json.loads(held["models.json"])
    assert page["models"][0]["checks"] == ["check/0", "check/1"]
    assert {page["models"][0]["file"], "ort/ort.wasm.min.mjs", "serve.py"} <= set(held)
    assert json.loads(held["settings.json"])["level"] == "all"
    for name, data in held.items():
        assert b"http://" not in data.replace(b"http://127.0.0.1", b""), name
        assert b"https://" not in data and str(tmp_path).encode() not in data, name
    monkeypatch.chdir(tmp_path)
    assert WebPage().missing() is None


def test_a_runtime_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NODE_PATH", raising=False)
    with pytest.raises(BackendMissing) as caught:
        package([], tmp_path / "out", "web")
    assert caught.value.fix == "npm install onnxruntime-web@1.30.0"
    other = npm(tmp_path / "other", "1.29.0")
    with pytest.raises(BadSettings, match=r"holds onnxruntime-web 1\.29\.0, not 1\.30\.0"):
        package([], tmp_path / "out", WebPage(runtime=str(other)))


def test_a_plan_that_sets_more_is_passed_over(tmp_path: Path) -> None:
    bundle = packaged.bundle(tmp_path, Openvino(threads=1))
    with pytest.raises(OrtuneError, match=r"no confirmed plan can run on onnx: .*openvino"):
        package([bundle], tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_an_image_is_written_no_more(tmp_path: Path) -> None:
    with pytest.raises(OrtuneError, match="target `oci` was removed") as caught:
        package([], tmp_path / "out", "oci(replayed=false)")
    assert "docs/bundles.md" in caught.value.fix


def test_a_card_of_the_original_says_that_nothing_was_optimized(tmp_path: Path) -> None:
    made = studies.study(tmp_path)
    bundle = pack(made, tmp_path / "a.ortune", trial=made.baseline.key, unconfirmed=True)
    card = (package([bundle], tmp_path / "out", "huggingface").path / "README.md").read_text()
    assert "Nothing of it was optimized" in card and "optimized by ortune" not in card
    bundle = pack(made, tmp_path / "b.ortune")
    card = (package([bundle], tmp_path / "two", "huggingface").path / "README.md").read_text()
    assert "optimized by ortune" in card


def test_the_command_that_a_card_prints_is_one_that_there_is(tmp_path: Path) -> None:
    """The hub's client of old, huggingface-cli, is gone from its present releases."""
    lines = package([packaged.bundle(tmp_path)], tmp_path / "out", "huggingface").lines
    program, verb, *_ = next(line for line in lines if "upload" in line).split()
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("huggingface_hub is not installed")
    shown = subprocess.run([found, verb, "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
