"""What a caller gives: the check before the runtime sees it, and pictures as tensors."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine import archive
from ortune.bundle.engine.manifest import PREPROCESS, Manifest, Signature
from ortune.core import preprocess, wording
from ortune.core.errors import BadData, BadModel, OrtuneError, with_article
from ortune.core.facts import TensorSpec
from ortune.core.plugins import stored
from ortune.core.preprocess import Preprocess
from ortune.data import images
from ortune.data.stream import NO_DTYPE


@dataclass(frozen=True, slots=True)
class InputCheck:
    """One input as the check needs it.

    Attributes:
        dtype: None takes any: text, sequences, and types that NumPy has no name for.
        rank: None takes any.
        fixed: Axis and size of every dimension that is not dynamic.
    """

    spec: TensorSpec
    dtype: np.dtype[Any] | None
    rank: int | None
    fixed: tuple[tuple[int, int], ...]

    def accepts_value(self, value: Any) -> bool:
        """Whether a value has the dtype, rank and fixed dimensions of the input."""
        if self.dtype is None:
            return True
        if not isinstance(value, np.ndarray):
            return False
        if value.dtype is not self.dtype and value.dtype != self.dtype:  # `is` is a tenth of `!=`
            return False
        shape = value.shape
        if self.rank is not None and len(shape) != self.rank:
            return False
        for axis, size in self.fixed:  # noqa: SIM110 (a generator costs as much as all the rest)
            if shape[axis] != size:
                return False
        return True


def prepare_checks(inputs: Sequence[TensorSpec]) -> dict[str, InputCheck]:
    """Prepare the check of a model's inputs."""
    prepared = {}
    for spec in inputs:
        dtype = None
        with suppress(*NO_DTYPE):
            dtype = np.dtype(spec.dtype) if spec.dtype else None
        if dtype is not None and dtype.kind in "OUST":
            dtype = None
        shape = spec.shape
        fixed = ((axis, dim) for axis, dim in enumerate(shape or ()) if isinstance(dim, int))
        rank = None if shape is None else len(shape)
        prepared[spec.name] = InputCheck(spec, dtype, rank, tuple(fixed))
    return prepared


def check_inputs(feeds: Mapping[str, Any], inputs: Mapping[str, InputCheck], model: str) -> None:
    """Refuse what the runtime would refuse, in words a person can use. Costs under 2 us.

    Raises BadData: a name is unknown or missing; a dtype, rank or fixed dimension is wrong.
    """
    if feeds.keys() != inputs.keys():
        unknown = sorted(feeds.keys() - inputs.keys())
        missing = sorted(inputs.keys() - feeds.keys())
        parts = [f"no input '{name}'" for name in unknown[:3]]
        parts += [f"input '{name}' is missing" for name in missing[:3]]
        raise BadData(
            f"{model}: {', '.join(parts)}. Got: {', '.join(feeds) or 'none'}; "
            f"expected: {', '.join(inputs) or 'none'}",
            fix="name the arrays like the inputs; engine(**{'odd.name': array}) takes any name",
        )
    for name, value in feeds.items():
        if not inputs[name].accepts_value(value):
            raise _make_mismatch_error(name, value, inputs[name])


def _make_mismatch_error(name: str, value: Any, expected: InputCheck) -> BadData:
    spec = expected.spec
    if not isinstance(value, np.ndarray):
        got = with_article(type(value).__name__)
        fix = f"give numpy.asarray(value, dtype='{spec.dtype}')"
    else:
        got = f"{value.dtype}{list(value.shape)}"
        fix = "give the dimensions that are numbers exactly; names and ? are free"
        if value.dtype != expected.dtype:
            fix = f"convert it with .astype('{spec.dtype}')"
        elif value.ndim != expected.rank:
            rank = wording.format_count(expected.rank or 0, "dimension")
            fix = f"give {rank}; a batch of one is array[None]"
    dims = ""
    if spec.shape is not None:
        dims = f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"
    return BadData(f"input '{name}': Got {got}, expected {spec.dtype}{dims}", fix=fix)


@dataclass(frozen=True)
class PictureInput:
    """The input of a model that takes pictures, and what it takes as it is."""

    settings: Preprocess
    tensor_check: InputCheck

    @property
    def keys(self) -> Mapping[str, Any]:
        """The settings as keys of ``preprocess.toml``, those left out there too."""
        fields = {
            name: getattr(self.settings, name) for name in stored.list_settable_rules(Preprocess)
        }
        return {name: value for name, value in fields.items() if value is not None}

    def replace_pictures(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the inputs with the tensor in place of a picture, or of a list of them.

        What the model takes as it is stays, and what is no picture too: the check of the inputs
        says what is wrong with it. Raises BadData: a picture cannot be read, or pictures of one
        batch differ in size.
        """
        name = self.tensor_check.spec.name
        value = inputs.get(name)
        if value is None or self.tensor_check.accepts_value(value):
            return inputs
        listed = isinstance(value, (list, tuple))
        pictures = list(value) if listed else [value]
        if not pictures or not all(map(images.is_picture, pictures)):
            return inputs
        return {**inputs, name: self._stack_pictures(pictures)}

    def _stack_pictures(self, pictures: list[Any]) -> NDArray[Any]:
        spec = self.tensor_check.spec
        tensors = [images.preprocess_picture(picture, self.settings, spec) for picture in pictures]
        if len(tensors) == 1:
            return tensors[0]
        if (
            self.tensor_check.rank == len(tensors[0].shape) == 3
            or len({picture.shape for picture in tensors}) > 1
        ):
            shapes = ", ".join(str(list(picture.shape)) for picture in tensors[:3])
            raise BadData(
                f"input '{spec.name}': Got pictures of shapes {shapes}, expected one shape, or "
                "one picture where there is no batch",
                fix="give them one by one",
            )
        return np.concatenate(tensors)


def attach_pictures(
    calls: Mapping[str, Any], name: str, file: zipfile.ZipFile, manifest: Manifest
) -> None:
    """Let the models of a bundle take pictures, as it says; nothing where it does not say.

    Raises BadModel, with the bundle's `name`: the settings were changed, or are none that it may
    hold.
    """
    if PREPROCESS not in manifest.members:
        return
    archive.extract_member(file, manifest, PREPROCESS, None)
    inputs = read_pictures(file.read(PREPROCESS), f"{name}: '{PREPROCESS}'", manifest.signatures)
    for model, picture_input in inputs.items():
        calls[model].pictures = picture_input


def read_pictures(
    content: bytes, where: str, signatures: Mapping[str, Signature]
) -> dict[str, PictureInput]:
    """Return model name -> its input that takes pictures, by the content of ``preprocess.toml``.

    Keys outside of tables are for every model that they fit; where there are tables, each has the
    name of a model. Raises BadModel, saying `where`: it is no TOML, or its settings are out of
    bounds or fit no model.
    """
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{where} cannot be read: {error}", fix="pack the run again") from None
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    if strange := sorted(tables.keys() - signatures.keys()):
        raise BadModel(
            f"{where} has a table '{strange[0]}', which is no model of the bundle",
            fix=f"name one of: {', '.join(signatures)}",
        )
    picture_inputs = {}
    for name, signature in signatures.items():
        table = tables.get(name) if tables else document
        names = [tensor.name for tensor in signature.inputs]
        if table is None:
            continue
        fits = table["input"] in names if "input" in table else len(names) == 1
        if not (tables or len(signatures) == 1 or fits):
            continue
        try:
            stored.demand_fields(table, Preprocess, where)
            settings, spec = images.settings_for(table, signature.inputs, lambda _: None, where)
            for field in ("mean", "std"):
                preprocess.per_channel(settings, field)
        except OrtuneError as error:
            raise BadModel(error.what, fix=error.fix) from None
        picture_inputs[name] = PictureInput(settings, prepare_checks([spec])[spec.name])
    if not picture_inputs:
        raise BadModel(
            f"{where} fits no model of the bundle", fix="name its input, or give a table a model"
        )
    return picture_inputs
