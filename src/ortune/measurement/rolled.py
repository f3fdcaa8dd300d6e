"""Samples of a model with state: what it gives at one step is fed at the next.

The model is run once, in a worker, over the sequences; what comes out are samples like any others,
which hold the states too. A sample's digest is that of all steps up to it, so that it does not
depend on the machine that rolled them.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ortune.core import atomic_write
from ortune.core.backend import Backend
from ortune.core.errors import BadData
from ortune.core.event import Sink, ignore_event
from ortune.core.facts import Facts
from ortune.core.plugins import codec
from ortune.data import feeds as feeds_module
from ortune.data import stream
from ortune.data.feeds import Feeds
from ortune.data.sequences import rolling, steps
from ortune.data.sequences.request import FILE
from ortune.data.sequences.rolling import Rolling
from ortune.data.sequences.steps import Steps
from ortune.data.sources import Source
from ortune.measurement.process import Worker, WorkerFailed, single_model_job

_KEY = "rolled.json"
_TIMEOUT_S, _RUN_S = 300, 10


@dataclass(frozen=True)
class StatefulModel:
    """A model whose samples are steps.

    Attributes:
        sequence: What makes a sequence of samples: file, group or a number.
        state: Outputs that are fed to inputs, such as ``h_out:h_in``; empty finds them.
        shapes: Of states at the first step, where given.
        earlier: Folder of the same samples, rolled by an earlier run.
    """

    model: Path
    digest: str
    facts: Facts
    sequence: str
    state: Sequence[str]
    backend: Backend
    shapes: Mapping[str, tuple[int, ...]]
    work: Path
    earlier: Path | None = None

    @property
    def rolling(self) -> Rolling:
        """The states. Raises BadData: there are none, or one that is named cannot be one."""
        facts, texts = self.facts, self.state
        state_pairs = (
            rolling.parse_state_pairs(texts, facts.inputs, facts.outputs)
            if texts
            else rolling.find_state_pairs(facts.inputs, facts.outputs)
        )
        states = [pair.input for pair in state_pairs]
        for name in self.shapes:
            if name not in states:
                raise BadData(
                    f"--shape {name}: it applies to made-up inputs, and samples are given",
                    fix=f"leave it out, or give it of a state: {', '.join(states)}",
                )
        return Rolling(facts.inputs, state_pairs, dict(self.shapes))

    def load(
        self,
        source: Source,
        out: Path,
        *,
        labels: str | Path | Sequence[Any] | None = None,
        batch: int = 0,
        sink: Sink = ignore_event,
    ) -> Feeds:
        """Read samples and roll the states through them into ``OUT/feeds.stream``.

        Args:
            source: See `feeds.load_feeds`; inputs that take a state may be left out.
            out: Folder for the stream file.
            labels: In the samples' order.
            batch: Samples that will be stacked into one run.
            sink: Receives how far it is.

        Raises:
            BadData: Samples, sequences or states cannot be used.
        """
        how = self.rolling
        cut = Steps(how.inputs, how.states)
        read = feeds_module.load_feeds(
            source,
            how.inputs,
            out / "given",
            labels=labels,
            batch=batch,
            optional=how.optional_inputs,
            steps=cut if self.sequence == FILE else None,
            sink=sink,
        )
        sequences = steps.group_into_sequences(self.sequence, read.count, read.groups, cut.lengths)
        key = codec.digest([read.digests, sequences, how, self.digest, str(self.backend)])
        path = out / "feeds.stream"
        if not _reuse_samples(self.earlier, key, path):
            job = single_model_job(self.model, self.backend, read.stream, self.work, "roll")
            limit_s = _TIMEOUT_S + _RUN_S * read.count
            try:
                with Worker(job, timeout_s=limit_s, sink=sink) as worker:
                    worker.ask("load")
                    worker.ask("roll", out=str(path.resolve()), sequences=sequences, how=how)
            except WorkerFailed as error:
                fix = (
                    error.failure.fix or "check the model and the data; `ortune inspect` shows it"
                )
                raise BadData(
                    f"states cannot be rolled: {error.failure.reason}", fix=fix
                ) from None
        shutil.rmtree(out / "given")
        atomic_write.write_text(out / _KEY, json.dumps({"key": key}) + "\n")
        order = [at for members in sequences for at in members]
        digests, start = [], codec.digest([self.digest, how])
        for members in sequences:
            before = start
            for at in members:
                before = sha256(f"{before} {read.digests[at]}".encode()).hexdigest()[:16]
                digests.append(before)
        return replace(
            read,
            stream=path,
            digests=tuple(digests),
            labels=None if read.labels is None else tuple(read.labels[at] for at in order),
            groups=tuple(
                group
                for members in steps.list_step_groups(sequences, read.groups)
                for group in members
            ),
            notes=(*read.notes, steps.describe_sequences(sequences, how.pairs)),
        )


def _reuse_samples(earlier: Path | None, key: str, path: Path) -> bool:
    """Take the samples of an earlier run, if they are of the same key; say whether they are."""
    if earlier is None:
        return False
    with suppress(OSError, ValueError, BadData):
        if json.loads((earlier / _KEY).read_text(encoding="utf-8")) == {"key": key}:
            stream.Stream(earlier / path.name)
            try:
                os.link(earlier / path.name, path)
            except OSError:
                shutil.copyfile(earlier / path.name, path)
            return True
    return False
