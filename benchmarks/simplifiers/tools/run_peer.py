"""Simplify one file by one tool with its defaults; runs in the tools' own environment.

    python run_peer.py TOOL MODEL OUT

The last line says: version, seconds without imports, peak memory of the process.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib.metadata import version

import onnx


def main() -> None:
    tool, source, out = sys.argv[1:]
    if tool == "onnxslim":
        import onnxslim
    elif tool == "onnxsim":
        import onnxsim
    else:
        import onnxscript.optimizer
    start = time.perf_counter()
    model = onnx.load(source)
    if tool == "onnxslim":
        made = onnxslim.slim(model)
    elif tool == "onnxsim":
        made, _ = onnxsim.simplify(model)
    else:
        made = onnxscript.optimizer.optimize(model)
    onnx.save(made, out)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print()
    print(json.dumps({"version": version(tool), "seconds": seconds, "peak_rss": peak}))


if __name__ == "__main__":
    main()
