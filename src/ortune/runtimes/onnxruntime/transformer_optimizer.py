"""onnxruntime's transformer optimizer as a command of its own: it may crash without harm.

``python -m ortune.runtimes.onnxruntime.transformer_optimizer IN OUT TYPE HEADS HIDDEN LEVEL``
writes OUT and one JSON line, the last of its output: fusible operator -> how many there are.
LEVEL -1 leaves onnxruntime's own level before the fusions to the optimizer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LARGE = 1_900_000_000
"""Bytes of weights from which they are stored beside the file: a message holds 2 GB."""


def main(words: list[str]) -> int:
    """Optimize one file; returns 0, or raises whatever the optimizer does."""
    from onnxruntime.transformers import optimizer

    source, out, kind, heads, hidden, level = words
    optimized = optimizer.optimize_model(
        source,
        kind,
        num_heads=int(heads),
        hidden_size=int(hidden),
        opt_level=None if int(level) < 0 else int(level),
    )
    folder = Path(source).parent
    large = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) > LARGE
    optimized.save_model_to_file(out, use_external_data_format=large)
    statistics = optimized.get_fused_operator_statistics()
    sys.stdout.write(f"\n{json.dumps({name: int(n) for name, n in statistics.items()})}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
