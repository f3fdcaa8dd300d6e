"""One loaded model as a function of its inputs: one by one, in batches, or from event loops."""

import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine import archive
from ortune.bundle.engine.batching import Answer, Batcher, Joint, Statistics, TimedAnswer
from ortune.bundle.engine.instances import Instances, Serving, flushes_denormals
from ortune.bundle.engine.manifest import PREPROCESS, Manifest, Signature
from ortune.core import preprocess, wording
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadModel, OrtuneError, with_article
from ortune.core.facts import TensorSpec
from ortune.core.plugins import stored
from ortune.core.preprocess import Preprocess
from ortune.core.session import Tensors
from ortune.data import images, sizes
from ortune.data.stream import NO_DTYPE, Stream


@dataclass(frozen=True, slots=True)
class InputCheck:
    """One input as the check needs it; no dtype, for text and sequences, and no rank take any.

    `fixed` has axis and size of every dimension that is not dynamic.
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


_WARM = "give a sample of yours: engine.warm_up(name=array)"


class Call:
    """Sessions of one model with their inputs checked; any number of threads may call.

    Attributes:
        pictures: Its input that takes pictures; None where tensors alone are taken.
        optional: Inputs that a request may leave out.
    """

    pictures: PictureInput | None = None
    optional: frozenset[str] = frozenset()

    def __init__(
        self,
        instances: Instances,
        signature: Signature,
        serving: Serving | None = None,
        *,
        golden: Path | None = None,
        backend: Backend | None = None,
        fills: bool = False,
    ) -> None:
        """Be ready for calls. The threads behind `submit` start with the first request.

        Args:
            instances: What runs it.
            serving: How requests share runs.
            golden: Stream file of samples to warm up with.
            backend: What the instances run on.
            fills: Every batch gets the most rows of one.
        """
        self.name = instances.name
        self.signature = signature
        self._instances = instances
        self._inputs = prepare_checks(signature.inputs)
        self._golden = golden
        self.serving = how = serving or Serving()
        fill = how.max_batch if fills else 0
        self._joint = Joint(self.name, signature, instances.run, backend, fill=fill)
        self._queue = Batcher(
            self.name,
            self._joint,
            workers=len(instances),
            at_once=backend is not None and flushes_denormals(backend),
            max_batch=how.max_batch,
            max_delay_us=how.max_delay_us,
            preferred=how.preferred,
            max_queue=how.max_queue,
        )

    def __repr__(self) -> str:
        return f"Call({self.signature})"

    def __call__(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run once and return every output by name.

        Raises:
            BadData: The inputs do not fit the model.
            OrtuneError: The engine was closed.
        """
        return self.run(inputs)

    def run(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Run the model on inputs in a mapping."""
        if self.pictures is not None:
            inputs = self.pictures.replace_pictures(inputs)
        check_inputs(inputs, self._inputs, self.name)
        return self._instances.run(inputs)

    def batch(self, samples: Sequence[Tensors]) -> list[dict[str, NDArray[Any]]]:
        """Run many samples, those of equal shapes together, and return their outputs in order.

        Raises:
            BadData: A sample does not fit the model; none has run then, unless the runtime
                found it.
            OrtuneError: The engine was closed.
        """
        samples = [self._prepare_inputs(sample) for sample in samples]
        for place, sample in enumerate(samples):
            try:
                check_inputs(sample, self._inputs, self.name)
            except BadData as error:
                raise BadData(f"sample {place}: {error.what}", fix=error.fix) from None
        rows = sum(self._joint.find_form(feeds)[1] for feeds in samples)
        instances = len(self._instances)
        groups = self._joint.group_samples(
            samples, min(self.serving.max_batch, -(-rows // instances))
        )

        def compute(group: Sequence[int]) -> Sequence[Answer]:
            return self._joint.compute_answers([samples[place] for place in group])

        if (workers := min(instances, len(groups))) < 2:
            computed = list(map(compute, groups))
        else:  # instances compute at the same time
            with ThreadPoolExecutor(workers) as threads:
                computed = list(threads.map(compute, groups))
        outputs: dict[int, dict[str, NDArray[Any]]] = {}
        for group, answers in zip(groups, computed, strict=True):
            for place, answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    raise answer
                outputs[place] = answer
        return [outputs[place] for place in range(len(samples))]

    def _prepare_inputs(self, inputs: Tensors) -> Tensors:
        """Return the inputs with tensors in the place of pictures."""
        return inputs if self.pictures is None else self.pictures.replace_pictures(inputs)

    async def submit(self, /, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Queue one request, to be joined with others that wait, and return its outputs.

        As `answered`, without the times.
        """
        return (await self.answered(**inputs)).outputs

    async def answered(self, /, **inputs: NDArray[Any]) -> TimedAnswer:
        """Queue one request, to be joined with others that wait; return outputs and times.

        The arrays must not change meanwhile. Awaited from any event loop, in any thread.

        Raises:
            BadData: The inputs do not fit the model.
            QueueFull: More requests wait than may.
            OrtuneError: The engine was closed.
        """
        feeds = self._prepare_inputs(inputs)
        check_inputs(feeds, self._inputs, self.name)
        return await self._queue.submit_request(feeds)

    @property
    def statistics(self) -> Statistics:
        """Counts and times of what was submitted."""
        return self._queue.statistics

    def warm_up(self, /, **inputs: NDArray[Any]) -> None:
        """Run every instance once: on these inputs, a golden sample, or the smallest zeros.

        Where batches are filled up to one size, each runs such a batch too. Whether samples may be
        joined is found out where the sample has values that differ.

        Raises:
            BadData: The inputs do not fit; or there are none, and the model does not take zeros.
            OrtuneError: The engine was closed.
        """
        if inputs or self._golden is None or not self._golden.is_file():
            sample = dict(inputs)
            for spec in self.signature.inputs if not inputs else ():  # free dimensions are 1
                kind = prepare_checks([spec])[spec.name].dtype
                if spec.shape is None or (kind is None and spec.dtype != "str"):
                    raise BadData(f"input '{spec.name}' is not an array of known shape", fix=_WARM)
                shape = tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape)
                dtype = np.dtype(object) if kind is None else kind
                sizes.require_memory(sizes.array_bytes(shape, dtype), f"input '{spec.name}'")
                empty = np.full(shape, "", object) if kind is None else np.zeros(shape, kind)
                sample[spec.name] = empty
        else:
            sample = {name: np.array(array) for name, array in Stream(self._golden)[0].items()}
        check_inputs(sample, self._inputs, self.name)
        try:
            for place in range(len(self._instances)):
                self._instances.run(sample, place)
        except BadData as error:
            raise BadData(error.what, fix=_WARM if not inputs else error.fix) from error
        self._joint.prove_joinable([sample])
        if (filled := self._joint.fill_up(sample)) is not sample:
            with suppress(BadData):  # it takes no batch: its samples are computed one by one
                for place in range(len(self._instances)):
                    self._instances.run(filled, place)

    def placement(self) -> Mapping[str, int]:
        """Return execution provider -> nodes, from the runtime's own record; empty if unknown."""
        session = self._instances.find_first_session()
        return session.placement() if session else {}

    def terminate(self) -> None:
        """Take no more requests; tell those there to end, as runtimes hear between two nodes."""
        self._queue.terminate()

    def drain(self) -> None:
        """Take no more calls and return when all that run or wait are answered."""
        self._queue.close()
        self._instances.wait_idle()

    def close(self) -> None:
        """Release the sessions."""
        self._queue.stop()
        self._instances.close()
