"""Find the padding in samples: the mask, the inputs of its length, the lengths of rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, suggest_names
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors

_FLAGS = "biuf"
_GIVE = "name the mask: an input [batch, length] that is 1 at real positions and 0 at padded ones"


@dataclass(frozen=True)
class Padding:
    """What the samples say."""

    mask: str  # the input that is 1 at real positions and 0 at padded ones
    inputs: tuple[str, ...]  # the other inputs that share its length, as their second dimension
    side: Literal["right", "left"]
    lengths: tuple[int, ...]  # longest row's real positions, one a sample
    widths: tuple[int, ...]  # what the sample was padded to

    @property
    def share(self) -> float:
        """Share of all positions that is padding."""
        return 1 - sum(self.lengths) / sum(self.widths)


@dataclass
class _Candidate:
    """What was seen of an input that may be a mask."""

    spec: TensorSpec
    defect: str = ""
    right_padded: bool = True
    left_padded: bool = True
    holes: int = -1
    empty: int = -1
    real_lengths: list[int] = field(default_factory=list)

    def add_sample(self, index: int, array: NDArray[Any]) -> None:
        """Take one sample in."""
        if self.defect:
            return
        if array.ndim != 2 or not array.size:
            self.defect = f"sample {index} is {list(array.shape)}"
            return
        mask = array != 0
        if not (array[mask] == 1).all():
            self.defect = f"sample {index} holds more than 0 and 1"
            return
        counts = mask.sum(axis=1, keepdims=True)
        places = np.arange(array.shape[1])
        pads_right = bool((mask == (places < counts)).all())
        pads_left = bool((mask == (places >= array.shape[1] - counts)).all())
        if not (pads_right or pads_left) and self.holes < 0:
            self.holes = index
        if not counts.all() and self.empty < 0:
            self.empty = index
        self.right_padded &= pads_right
        self.left_padded &= pads_left
        self.real_lengths.append(int(counts.max()))

    @property
    def fits(self) -> bool:
        """Whether it may be a mask with padding at one end."""
        return not self.defect and self.empty < 0 and (self.right_padded or self.left_padded)


def find_padding(
    inputs: Sequence[TensorSpec], samples: Iterable[Tensors], mask: str = ""
) -> Padding:
    """Find mask, companions, side and lengths.

    Args:
        samples: Read once.
        mask: The mask's name; without it inputs with "mask" in their names are looked at first.

    Raises:
        BadData: There is no mask, it is not one with padding at one end, its length is fixed, or
            nothing is padded.
    """
    specs = {spec.name: spec for spec in inputs}
    if mask and mask not in specs:
        raise BadData(f"there is no input '{mask}'", fix=suggest_names(mask, specs))
    named = [specs[mask]] if mask else list(inputs)
    candidates = [_Candidate(s) for s in named if mask or _can_be_mask(s)]
    shapes: list[dict[str, tuple[int, ...]]] = []
    for index, sample in enumerate(samples):
        shapes.append({name: array.shape for name, array in sample.items()})
        for entry in candidates:
            entry.add_sample(index, sample[entry.spec.name])
    chosen = _select_mask(candidates, shapes, is_named=bool(mask))
    name = chosen.spec.name
    if chosen.spec.shape and isinstance(chosen.spec.shape[1], int):
        raise BadData(
            f"the length of '{name}' is fixed at {chosen.spec.shape[1]} in the model",
            fix=f'free it: ortune apply MODEL "free-dims(dims=[{name}.1:length])" -o FREE.onnx',
        )
    widths = tuple(entry[name][1] for entry in shapes)
    if tuple(chosen.real_lengths) == widths:
        raise BadData(
            f"no sample is padded: '{name}' holds no column of zeros",
            fix="there is nothing to gain here; give the data as they are served, padded",
        )
    other_inputs = (s for s in inputs if s.name != name)
    same = tuple(s.name for s in other_inputs if _has_same_length(s, chosen.spec, shapes))
    side: Literal["right", "left"] = "right" if chosen.right_padded else "left"
    return Padding(name, same, side, tuple(chosen.real_lengths), widths)


def _can_be_mask(spec: TensorSpec) -> bool:
    if spec.shape is not None and len(spec.shape) != 2:
        return False
    try:
        return np.dtype(spec.dtype).kind in _FLAGS
    except TypeError:
        return False


def _select_mask(
    candidates: Sequence[_Candidate],
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    *,
    is_named: bool,
) -> _Candidate:
    """Return the likeliest: by name, padded at all, padded at the right."""
    fit = [candidate for candidate in candidates if candidate.fits]
    if fit:

        def rank(candidate: _Candidate) -> tuple[bool, bool, bool]:
            widths = [sizes[candidate.spec.name][1] for sizes in shapes]
            padded = any(r < w for r, w in zip(candidate.real_lengths, widths, strict=True))
            return not _has_mask_name(candidate), not padded, not candidate.right_padded

        return min(fit, key=rank)
    for candidate in candidates:
        if not (is_named or _has_mask_name(candidate)):
            continue
        name = candidate.spec.name
        if candidate.defect:
            raise BadData(f"'{name}' is not a mask: {candidate.defect}", fix=_GIVE)
        if candidate.holes >= 0:
            raise BadData(
                f"mask '{name}' has holes: sample {candidate.holes} is padded between real "
                "positions",
                fix="pad every row at one end",
            )
        if candidate.empty >= 0:
            raise BadData(
                f"mask '{name}': sample {candidate.empty} has a row without a real position",
                fix="leave such rows out",
            )
        raise BadData(
            f"mask '{name}': some samples are padded on the left, others on the right",
            fix="pad all on one side",
        )
    raise BadData("no input is a mask of 0 and 1 with padding at one end", fix=_GIVE)


def _has_mask_name(candidate: _Candidate) -> bool:
    return "mask" in candidate.spec.name.lower()


def _has_same_length(
    spec: TensorSpec, mask: TensorSpec, shapes: Sequence[Mapping[str, tuple[int, ...]]]
) -> bool:
    """Whether an input is as long as the mask, by the model's names or else in every sample."""
    dims, length = spec.shape, mask.shape[1] if mask.shape else None
    if dims is not None and isinstance(length, str):
        if length in (*dims[:1], *dims[2:]):
            raise BadData(
                f"input '{spec.name}' has the length '{length}' as another dimension than its "
                "second",
                fix="only inputs [batch, length, ...] can be cut",
            )
        if length in dims:
            return True
    if dims is not None and (len(dims) < 2 or isinstance(dims[1], int)):
        return False
    pairs = ((sample[spec.name], sample[mask.name]) for sample in shapes)
    return all(len(shape) > 1 and shape[1] == masked[1] for shape, masked in pairs)
