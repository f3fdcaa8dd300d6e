"""Vectors of texts by a folder that ortune packed, as its readers load it: JSON on stdout.

PYTHON read_packed.py FOLDER TEXT ...    (in the environment `sentence_transformers`)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from optimum.onnxruntime import ORTModelForFeatureExtraction
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

folder, *texts = sys.argv[1:]
found = {}
for path in sorted(Path(folder, "onnx").glob("*.onnx")):
    chosen = {"file_name": f"onnx/{path.name}", "provider": "CPUExecutionProvider"}
    model = SentenceTransformer(folder, backend="onnx", model_kwargs=chosen, device="cpu")
    found[f"sentence-transformers, {path.name}"] = [model.encode(one).tolist() for one in texts]
    model = ORTModelForFeatureExtraction.from_pretrained(
        folder, subfolder="onnx", file_name=path.name
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    vectors = []
    for text in texts:
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).tolist())
    found[f"optimum, {path.name}"] = vectors
print(json.dumps(found))
