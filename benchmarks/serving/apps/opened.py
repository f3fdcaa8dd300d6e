"""The sessions of every app: one thread, as ours."""

from pathlib import Path

import onnxruntime as ort


def session(path: str | Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def sessions(folder: str | Path) -> dict[str, ort.InferenceSession]:
    return {path.stem: session(path) for path in sorted(Path(folder).glob("*.onnx"))}
