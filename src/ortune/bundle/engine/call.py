"""One loaded model as a function of its inputs: one by one, in batches, or from event loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine.batching import Batcher, Statistics, TimedAnswer
from ortune.bundle.engine.inputs import PictureInput, check_inputs, prepare_checks
from ortune.bundle.engine.instances import Instances, Serving, flushes_denormals
from ortune.bundle.engine.joining import Answer, Joint
from ortune.bundle.engine.manifest import Signature
from ortune.core.backend import Backend
from ortune.core.errors import BadData
from ortune.core.session import Tensors
from ortune.data import sizes
from ortune.data.stream import Stream

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
