"""JSON and TOML of others that their parsers refuse in ways of their own: two lines, no stack.

Python reads no integer of thousands of digits, and nothing that is nested thousands deep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ortune.analysis.benchmark.compare import read_run
from ortune.analysis.conversion.steps import read_sensitive_layers
from ortune.analysis.costs.cost import read_priced_source
from ortune.analysis.profiling.files import read_profile
from ortune.core.errors import OrtuneError
from ortune.core.facts import TensorSpec
from ortune.data.labels import read_annotations
from ortune.data.reading import Reading
from ortune.data.sources import open_source
from ortune.measurement.devices import read_inventory
from ortune.quantizers.calibration.ranges_file import read_ranges

DIGITS, DEPTH = "9" * 5000, 100_000


def read_samples(path: Path) -> None:
    list(open_source(path, Reading([TensorSpec("x", "float32", (1,))], print)))


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        (read_samples, "x.jsonl"),
        (read_run, "x.json"),
        (partial(read_sensitive_layers, threshold=0.1), "x.json"),
        (read_priced_source, "x.json"),
        (read_annotations, "x.json"),
        (read_ranges, "x.json"),
        (lambda path: read_profile(path.parent), "profile.json"),
        (read_inventory, "x.toml"),
    ],
    ids=["samples", "run", "regions", "costs", "boxes", "ranges", "profile", "inventory"],
)
@pytest.mark.parametrize("inner", [DIGITS, "[" * DEPTH + "]" * DEPTH], ids=["digits", "deep"])
def test_what_python_cannot_parse_is_refused_in_two_lines(
    reader: Callable[[Path], object], name: str, inner: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(f"x = {inner}" if path.suffix == ".toml" else f'{{"x": {inner}}}')
    with pytest.raises(OrtuneError) as refused:
        reader(path)
    assert refused.value.fix and len(str(refused.value)) < 500
