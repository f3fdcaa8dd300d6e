"""Folders as the hub lays them out: which file is the model, and what the settings say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ortune as ot
from ortune.core import hub
from ortune.core.errors import BadModel

MODULES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def make_folder(root: Path, architecture: str = "BertModel", **config: Any) -> hub.HubFolder:
    write_json(
        root / "config.json", {"model_type": "bert", "architectures": [architecture], **config}
    )
    folder = hub.find_folder(root)
    assert folder is not None
    return folder


def write_model(path: Path, *, external: bool = False) -> None:
    weight = numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")
    sides = [helper.make_tensor_value_info(name, 1, ["batch", 3]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", sides[:1], sides[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(
        model, path, save_as_external_data=external, location="model.onnx_data", size_threshold=0
    )


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertModel", "feature-extraction"),
        ("BertForSequenceClassification", "text-classification"),
        ("DistilBertForTokenClassification", "token-classification"),
        ("RobertaForMaskedLM", "fill-mask"),
        ("BertForQuestionAnswering", "question-answering"),
        ("ViTForImageClassification", "image-classification"),
        ("GPT2LMHeadModel", "text-generation"),
        ("T5ForConditionalGeneration", "text2text-generation"),
        ("WhisperForConditionalGeneration", "automatic-speech-recognition"),
        ("Wav2Vec2ForCTC", "automatic-speech-recognition"),
        ("WhisperForAudioClassification", "audio-classification"),
    ],
)
def test_task(tmp_path: Path, architecture: str, task: str) -> None:
    assert make_folder(tmp_path, architecture).task == task


def test_a_classifier_with_a_rate_takes_sound(tmp_path: Path) -> None:
    write_json(tmp_path / "preprocessor_config.json", {"sampling_rate": 16000})
    folder = make_folder(tmp_path, "HubertForSequenceClassification")
    assert folder.task == "audio-classification" and not folder.spells
    folder = make_folder(tmp_path, "HubertForCTC", pad_token_id=3)
    assert folder.spells and folder.blank == 3


def test_sentence_transformers(tmp_path: Path) -> None:
    write_json(tmp_path / "modules.json", MODULES)
    write_json(tmp_path / "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 128})
    folder = make_folder(tmp_path, max_position_embeddings=512)
    assert (folder.task, folder.pooling, folder.normalizes) == ("sentence-similarity", "cls", True)
    assert folder.longest == 128
    assert [name for name, _ in hub.list_side_files(folder)] == [
        *("config.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
    ]
    dense = {"idx": 3, "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    write_json(tmp_path / "modules.json", [*MODULES, dense])
    folder = replace(folder)  # what was read is kept
    assert folder.pooling is None, "what a further layer makes of it is not known"


def test_transformer_in_a_folder_of_its_own(tmp_path: Path) -> None:
    write_json(tmp_path / "modules.json", [{**MODULES[0], "path": "0_Transformer"}, *MODULES[1:]])
    write_json(tmp_path / "0_Transformer/config.json", {"model_type": "bert"})
    folder = hub.find_folder(tmp_path / "onnx/model.onnx")
    assert folder is not None and folder.folder == tmp_path / "0_Transformer"
    assert ("0_Transformer/config.json", folder.folder / "config.json") in list(
        hub.list_side_files(folder)
    )


def test_longest_text_and_classes(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path, max_position_embeddings=514, id2label={"10": "k", "2": "c", "0": "a"}
    )
    assert folder.longest == 514 and folder.classes == ("a", "c", "k")
    shifted = make_folder(tmp_path, max_position_embeddings=514, model_type="xlm-roberta")
    assert shifted.longest == 512, "its positions begin at 2"
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 10**30})
    assert shifted.longest == 512


def test_pictures(tmp_path: Path) -> None:
    settings = {"size": {"height": 8, "width": 9}, "resample": 3, "image_mean": [0.5] * 3}
    write_json(tmp_path / "preprocessor_config.json", {**settings, "image_std": [0.25] * 3})
    assert make_folder(tmp_path).picture_keys == {
        "resize": [8, 9],
        "interpolation": "bicubic",
        "scale": 1 / 255,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
    }
    cut = {"size": {"shortest_edge": 10}, "do_center_crop": True, "crop_size": 8}
    write_json(tmp_path / "preprocessor_config.json", {**cut, "do_rescale": False})
    assert make_folder(tmp_path).picture_keys == {
        "resize": 10,
        "interpolation": "bilinear",
        "crop": 8,
        "scale": 1.0,
    }


def test_every_verb_takes_the_folder(tmp_path: Path) -> None:
    make_folder(tmp_path / "folder")
    write_model(tmp_path / "folder/onnx/model.onnx")
    assert ot.inspect(tmp_path / "folder").model == tmp_path / "folder/onnx/model.onnx"
    compared = ot.verify(tmp_path / "folder", tmp_path / "folder/onnx/model.onnx")
    assert all(score.verdict == "proved" for score in compared.scores[:1])


def test_a_config_of_something_else_is_left_alone(tmp_path: Path) -> None:
    write_model(tmp_path / "models/mine.onnx")
    for content in ("[1, 2]", "no JSON", '{"learning_rate": 1}'):
        (tmp_path / "config.json").write_text(content)
        (tmp_path / "models/modules.json").write_text(content)
        assert hub.find_folder(tmp_path / "models/mine.onnx") is None
    assert ot.inspect(tmp_path / "models/mine.onnx").facts.parameters == 9
    make_folder(tmp_path)
    (tmp_path / "models/modules.json").unlink()
    assert hub.find_folder(tmp_path / "models/mine.onnx") is None, "that is another model's"


def test_the_cache_of_the_hub(tmp_path: Path) -> None:
    home = tmp_path / "models--owner--name"
    snapshot = home / "snapshots/abc"
    make_folder(snapshot)
    (home / "refs").mkdir()
    (home / "refs/main").write_text("abc\n")
    write_model(home / "blobs/model.onnx", external=True)
    (snapshot / "onnx").mkdir()
    for name, blob in (("model.onnx", "1f"), ("model.onnx_data", "2e")):
        (home / "blobs" / name).rename(home / "blobs" / blob)
        (snapshot / "onnx" / name).symlink_to(home / "blobs" / blob)
    inspection = ot.inspect(home)
    assert inspection.model == snapshot / "onnx/model.onnx"
    assert inspection.facts.parameters == 9


def test_what_is_no_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="nothing is downloaded") as error:
        ot.inspect("owner/some-model")
    assert error.value.fix.startswith("hf download owner/some-model --local-dir some-model")
    make_folder(tmp_path)
    with pytest.raises(BadModel, match=r"without onnx/model\.onnx") as error:
        ot.inspect(tmp_path)
    assert error.value.fix == f"ortune export {tmp_path} -o {tmp_path / 'onnx/model.onnx'}"
    write_model(tmp_path / "onnx/encoder.onnx")
    with pytest.raises(BadModel) as error:
        ot.inspect(tmp_path)
    assert error.value.fix == f"give one, such as {tmp_path / 'onnx/encoder.onnx'}"
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadModel, match="cannot read"):
        ot.inspect(tmp_path)


def test_a_folder_of_onnxruntime_genai(tmp_path: Path) -> None:
    decoder = {"filename": "text.onnx", "head_size": 16, "num_key_value_heads": 2}
    model = {"type": "llama", "context_length": 256, "eos_token_id": [3, 5], "decoder": decoder}
    write_json(tmp_path / "genai_config.json", {"model": model})
    write_model(tmp_path / "text.onnx")
    folder = hub.find_folder(tmp_path)
    assert folder is not None
    assert (folder.task, folder.longest, folder.ends) == ("text-generation", 256, {3, 5})
    assert folder.cache_sizes == (2, 16)
    assert hub.locate_model(tmp_path) == tmp_path / "text.onnx"
    assert [place for place, _ in hub.list_side_files(folder)] == ["genai_config.json"]
    write_json(tmp_path / "genai_config.json", {"search": {}})
    assert hub.find_folder(tmp_path) is None


def test_tokens_that_end_a_text(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "GPT2LMHeadModel", eos_token_id=7, n_embd=12, n_head=3)
    assert (folder.ends, folder.cache_sizes) == ({7}, (3, 4))
    write_json(
        tmp_path / "generation_config.json", {"eos_token_id": [1, 2], "decoder_start_token_id": 3}
    )
    assert folder.ends == {1, 2}
    assert folder.start == 3
