"""More calibration samples out of those that are there: altered copies, seeded."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.augmentation import Augmentation
from ortune.core.errors import BadData, suggest_names
from ortune.core.plugins.spelling import parse_list
from ortune.core.session import Tensors
from ortune.data import feeds as feeds_module
from ortune.data import stream
from ortune.data.feeds import Feeds


def parse_augmentations(text: str) -> tuple[Augmentation, ...]:
    """Read ``noise(db=30),flip,scale(low=0.9,high=1.1)``.

    Raises:
        OrtuneError: The text, a name or a field is wrong.
    """
    return tuple(augmentation for augmentation, _ in parse_list(Augmentation, text))


def augment_samples(
    feeds: Feeds,
    indices: Sequence[int],
    augmentations: Sequence[Augmentation],
    out: Path,
    *,
    seed: int = 0,
) -> Feeds:
    """Write the chosen samples and one altered copy of each for every way, into OUT.

    N samples become N * (1 + ways): the originals in order, then the copies by the first way, by
    the second and so on. A copy belongs to its original's group, so that they are never parted.
    Labels are left out: what is augmented is observed and not scored. Equal arguments make equal
    samples.

    Args:
        out: Folder for ``augmented.stream``.

    Raises:
        BadData: A way alters no input of these samples, or names one that is not there.
    """
    source = stream.Stream(feeds.stream)
    first = source[indices[0]]
    chosen = [_find_altered_inputs(augmentation, first) for augmentation in augmentations]
    digests: list[str] = []
    groups: list[str] = []

    def samples() -> Iterator[Tensors]:
        for turn in range(len(augmentations) + 1):
            for index in indices:
                sample = source[index]
                if turn:
                    rng = np.random.default_rng([seed, turn, index])
                    augmentation, names = augmentations[turn - 1], chosen[turn - 1]
                    sample = sample | {
                        name: augmentation.alter(sample[name], rng) for name in names
                    }
                digests.append(feeds_module.digest_sample(sample))
                groups.append(feeds.groups[index] if feeds.groups else feeds.digests[index])
                yield sample

    path = out / "augmented.stream"
    count = stream.write_stream(path, samples())
    note = (
        f"calibration: {wording.format_count(len(indices), 'sample')} and "
        f"{wording.format_count(count - len(indices), 'altered copy', 'altered copies')}"
    )
    return Feeds(
        path,
        count,
        tuple(digests),
        groups=tuple(groups),
        source=feeds.source,
        synthetic=feeds.synthetic,
        notes=(f"{note} ({', '.join(map(str, augmentations))})",),
    )


def _find_altered_inputs(augmentation: Augmentation, sample: Tensors) -> tuple[str, ...]:
    """Return the inputs that a way alters, one at least and all named, else raise BadData."""
    for name in augmentation.inputs:
        if name not in sample:
            raise BadData(
                f"{augmentation}: the model has no input '{name}'", fix=suggest_names(name, sample)
            )
        if not _is_float(sample[name]):
            kind = sample[name].dtype
            raise BadData(
                f"{augmentation}: input '{name}' is {kind}, and only floats are altered",
                fix=f"leave {augmentation.name()} out, or name a float input",
            )
    candidates = augmentation.inputs or tuple(name for name in sample if _is_float(sample[name]))
    if not candidates:
        dtypes = ", ".join(f"{name} {array.dtype}" for name, array in sample.items())
        raise BadData(
            f"{augmentation} has nothing to alter: no input is float ({dtypes})",
            fix="leave --augment out: integers stay as they are",
        )
    altered = tuple(name for name in candidates if augmentation.takes(sample[name]))
    if not altered or (augmentation.inputs and len(altered) < len(candidates)):
        shapes = ", ".join(f"{name} {list(sample[name].shape)}" for name in candidates)
        raise BadData(
            f"{augmentation} has nothing to alter in {shapes}",
            fix=f"leave {augmentation.name()} out of --augment",
        )
    return altered


def _is_float(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"
