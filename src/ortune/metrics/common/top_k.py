"""Top-k accuracy of one classifier output, sample by sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData
from ortune.core.metric import Kind, Metric
from ortune.core.session import Tensors
from ortune.metrics.common.outputs import (
    Floats,
    has_broken_values,
    has_same_shape,
    is_exact,
    select_outputs,
    to_floats,
)


@dataclass(frozen=True)
class TopK(Metric):
    """Right or wrong, sample by sample; between 0 and 1 where a sample holds several labels.

    Attributes:
        output: Output of class scores [..., classes]; empty takes the only one that fits.
    """

    needs_labels: ClassVar[bool] = True
    k: ClassVar[int] = 1
    """How many of the highest scores count."""
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    output: str = ""

    def kind(self, baseline: Floats | None = None) -> Kind:
        """Return right where every sample is either right or wrong."""
        whole = baseline is None or bool(np.isin(baseline[:, 0], (0.0, 1.0)).all())
        return Kind.RIGHT if whole else Kind.MEAN

    def chance(self, labels: Sequence[Any]) -> float:
        """Return the share of labels that are of the `k` commonest classes."""
        classes = np.concatenate([np.asarray(label).reshape(-1) for label in labels])
        counts = np.unique(classes, return_counts=True)[1]
        return float(np.sort(counts)[-self.k :].sum() / counts.sum())

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """Return the share of a sample's labels whose class is among the k highest scores.

        Of equal scores the first class ranks higher, as argmax has it. NaN where the candidate's
        scores are broken or NaN.

        Raises:
            BadData: No output fits, or the labels do not fit the output.
        """
        k, output = self.k, self.output
        name = select_outputs(expected, output)[0] if output else find_scores(expected, k)
        shape = expected[name].shape
        if len(shape) < 2 or shape[-1] <= k:
            classes = wording.format_count(k, "class", "classes")
            raise BadData(
                f"output '{name}' has shape {list(shape)}: no top-{k} of it",
                fix=f"choose scores of more than {classes}: top{k}(output=NAME)",
            )
        labels = np.asarray(label)
        whole = labels.dtype.kind == "f" and np.array_equal(labels, np.floor(labels))
        if labels.dtype.kind not in "iub" and not whole:
            raise BadData(
                f"label {label!r} is not a class index", fix="give integer labels from 0"
            )
        count = int(np.prod(shape[:-1]))
        if labels.size != count:
            raise BadData(
                f"wrong number of labels for output '{name}' {list(shape)}: "
                f"Got {labels.size} a sample, expected {count}",
                fix="give one label for every row of scores",
            )
        labels = labels.astype(np.int64).reshape(-1)
        if has_broken_values(expected, actual, [name]) or not len(labels):
            return float("nan")
        if not has_same_shape(expected, actual, name):
            return 0.0
        scores = to_floats(actual[name]).reshape(-1, shape[-1])
        if np.isnan(scores).any():
            return float("nan")
        inside = (labels >= 0) & (labels < shape[-1])
        place = np.where(inside, labels, 0)[:, None]
        label_scores = np.take_along_axis(scores, place, axis=1)
        earlier = np.arange(shape[-1]) < place
        rank = np.sum((scores > label_scores) | ((scores == label_scores) & earlier), axis=1)
        return float(np.mean(inside & (rank < k)))

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        return frozenset([self.output or find_scores(outputs, 1)])


def find_scores(outputs: Tensors, k: int) -> str:
    """Return the only output that looks like class scores. Raises BadData: none or several do."""
    fit = [n for n, a in outputs.items() if not is_exact(a) and a.ndim >= 2 and a.shape[-1] > 1]
    if len(fit) != 1:
        raise BadData(
            f"{len(fit)} of the outputs {', '.join(outputs)} look like scores [..., classes]",
            fix=f"name one: top{k}(output=NAME)" if fit else "use a metric without labels",
        )
    return fit[0]


def read_row_labels(expected: Tensors, name: str, label: Any) -> NDArray[Any]:
    """Return a sample's labels [rows of an output]; those below 0 are not scored.

    Raises:
        BadData: They are no whole numbers, or not one a row.
    """
    labels, shape = np.asarray(label).reshape(-1), expected[name].shape
    count = expected[name].size // shape[-1]
    if labels.dtype.kind not in "iu" or labels.size != count:
        raise BadData(
            f"wrong labels for output '{name}' {list(shape)}: Got {labels.size}, "
            f"expected {count} whole numbers",
            fix="give one class number for every row of scores, -100 where none counts",
        )
    return labels
