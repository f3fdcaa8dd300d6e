"""Quantize a model by NNCF for OpenVINO: run by the Python of NNCF's own environment.

PYTHON nncf_file.py MODEL.onnx CALIBRATION OUT.xml [transformer]
"""

from __future__ import annotations

import sys
from pathlib import Path

import nncf
import numpy as np
import openvino

if __name__ == "__main__":
    source, samples, out, *kind = sys.argv[1:]
    model = openvino.Core().read_model(source)
    feeds = [
        {name: array for name, array in np.load(path).items() if name not in ("label", "group")}
        for path in sorted(Path(samples).glob("*.npz"))
    ]
    told = (
        {"model_type": nncf.ModelType.TRANSFORMER}
        if kind
        else {"preset": nncf.QuantizationPreset.MIXED}
    )
    quantized = nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds), **told)
    openvino.save_model(quantized, out, compress_to_fp16=False)
