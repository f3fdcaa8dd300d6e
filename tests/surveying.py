"""The surroundings of a search by hand, for surveys of regions on toy models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortune.core.session import Tensors
from ortune.data import stream
from ortune.data.feeds import Feeds
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.timing.turns import Deadlines
from ortune.search.experiment.context import Context, ScoredPart
from ortune.search.recipe.built import Material
from tests.unit import studies


def context(root: Path, model: ir.Model, samples: Sequence[Tensors], **more: object) -> Context:
    """Write model and samples below a folder, and return what a search would know of them."""
    root.mkdir(parents=True)
    source = root / "source" / "toy.onnx"
    source.parent.mkdir()
    onnx.save(ir.to_proto(model), source)
    feeds = root / "samples.stream"
    count = stream.write_stream(feeds, samples)
    every = tuple(range(count))
    material = Material(Feeds(feeds, count, tuple(map(str, every)), None, None), every)
    part = ScoredPart("search", every, None, np.ones((count, 1)))
    return Context(
        root,
        studies.job(source),
        read_facts(file.load(source)),
        {"": source},
        {"": feeds},
        {"": material},
        {"search": part},
        "",
        timeout_s=60.0,
        deadlines=Deadlines(run_ns=1_000_000),
        **more,  # type: ignore[arg-type]
    )
