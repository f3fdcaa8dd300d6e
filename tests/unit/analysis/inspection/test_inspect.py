"""What an inspection shows at a prompt."""

from __future__ import annotations

from pathlib import Path

from tests.models import write_classifier

import ortune as ot


def test_the_repr_has_the_figures_of_the_models_size_and_work(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path)
    found = ot.inspect(model)
    shown = found.summary()
    assert shown["nodes"] == found.facts.nodes
    assert shown["FLOPs"] == found.facts.flops
    assert shown["bytes moved"] == found.moved
    assert shown["findings"] == len(found.lint)
    assert repr(found).startswith("Inspection\n  model ")
