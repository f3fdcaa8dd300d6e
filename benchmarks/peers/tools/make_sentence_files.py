"""The int8 files of sentence-transformers, by its own exporter from a folder without ONNX.

PYTHON make_sentence_files.py FOLDER OUT    (in the environment `sentence_transformers`)
"""

from __future__ import annotations

import sys

from sentence_transformers import SentenceTransformer
from sentence_transformers.backend import export_dynamic_quantized_onnx_model

folder, out = sys.argv[1:]
model = SentenceTransformer(folder, backend="onnx", model_kwargs={"export": True}, device="cpu")
model.save_pretrained(out)
for kind in ("arm64", "avx2", "avx512", "avx512_vnni"):
    export_dynamic_quantized_onnx_model(model, kind, out)
