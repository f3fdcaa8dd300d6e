"""Folders as the hub has them, of ten words and a model that looks them up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from ortune.core import hub
from tests.stateful import write_decoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "sat", "here", "un", "##do"]
CLS, SEP = WORDS.index("[CLS]"), WORDS.index("[SEP]")
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
reader (int64[batch,sequence] input_ids, int64[batch,sequence] attention_mask,
        int64[batch,sequence] token_type_ids) => (float[%s] %s)
<float[10,2] table = {0,0, 0,0, 0,0, 0,0, 0,1, 3,0, 1,0, 0,2, 0,0, 0,0}>
{ %s }
"""
BODIES = {
    "BertForTokenClassification": (
        "batch,sequence,2",
        "logits",
        "logits = Gather(table, input_ids)",
    ),
    "BertForSequenceClassification": (
        "batch,2",
        "logits",
        """one = Constant<value = int64[1] {1}>() words = Gather(table, input_ids)
        logits = ReduceSum<keepdims = 0>(words, one)""",
    ),
    "BertForMaskedLM": (
        "batch,sequence,10",
        "logits",
        """words = Gather(table, input_ids) column = Transpose<perm = [1, 0]>(table)
        logits = MatMul(words, column)""",
    ),
    "BertForQuestionAnswering": (
        "batch,sequence] start_logits, float[batch,sequence",
        "end_logits",
        """zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>()
        words = Gather(table, input_ids)
        start_logits = Gather<axis = 2>(words, zero)
        end_logits = Gather<axis = 2>(words, one)""",
    ),
    "BertModel": (
        "batch,sequence,2",
        "last_hidden_state",
        "last_hidden_state = Gather(table, input_ids)",
    ),
}


def make_folder(root: Path, *, similarity: bool = False, **config: Any) -> hub.HubFolder:
    """Write tokenizer and settings; with `similarity` a folder of sentence-transformers."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    root.mkdir(exist_ok=True)
    tokenizer.save(str(root / "tokenizer.json"))
    (root / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    if similarity:
        kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        modules = [{"path": path, "type": f"st.models.{kind}"} for kind, path in kinds.items()]
        (root / "modules.json").write_text(json.dumps(modules))
        (root / "1_Pooling").mkdir(exist_ok=True)
        pooling = json.dumps({"pooling_mode_mean_tokens": True})
        (root / "1_Pooling/config.json").write_text(pooling)
    folder = hub.find_folder(root)
    assert folder is not None
    return folder


def write_reader(root: Path, architecture: str, **config: Any) -> hub.HubFolder:
    """Write a folder whose model adds up, or gives, a row of two numbers for each word."""
    settings = make_folder(root, architectures=[architecture], **config)
    (root / "onnx").mkdir()
    model = onnx.parser.parse_model(MODEL % BODIES[architecture])
    onnx.save(model, root / "onnx" / "model.onnx")
    return settings


def write_generator(root: Path) -> hub.HubFolder:
    """Write a folder whose model predicts next tokens and has a cache."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 64}
    settings = make_folder(root, architectures=["ToyForCausalLM"], eos_token_id=49, **sizes)
    write_decoder(root / "onnx" / "model.onnx")
    return settings
