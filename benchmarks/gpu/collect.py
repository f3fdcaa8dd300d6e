"""One committed file of what the steps of a GPU's benchmark found.

    python -m benchmarks.gpu.collect FOLDER

FOLDER is what ``python -m benchmarks.gpu --out`` wrote; the result is
``benchmarks/results/CARD/gpu.json``. A step without a file is left out, one that was ended keeps
what it had found by then.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps import STEPS
from benchmarks.result_files import RESULTS, write_results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    results: dict[str, Any] = {}
    for step in STEPS:
        path = folder / f"{step.name}.json"
        if path.is_file():
            results[step.name] = json.loads(path.read_text())
    about = results.pop("doctor")
    card = re.sub(r"[^a-z0-9]+", "-", about["gpus"][0]["name"].lower()).strip("-")
    path = RESULTS / card / "gpu.json"
    write_results(path, about | results)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
