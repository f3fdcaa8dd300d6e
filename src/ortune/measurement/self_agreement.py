"""Ask a worker whether a model agrees with itself."""

from dataclasses import replace
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import Interruption
from ortune.core.facts import Facts
from ortune.core.self_agreement import SelfAgreement
from ortune.core.temporary_folder import open_temporary_folder
from ortune.measurement.process import Worker, WorkerFailed, single_model_job

_SAMPLES, _LIMIT_S = 4, 300.0
_LEAST_DB, _COARSE_DB = 60.0, 20.0
"""Signal to noise that a right rewrite keeps: of float32, and of what is rounded on the way."""
_COARSE = frozenset({"float16", "bfloat16"})


def compare_with_itself(
    model: Path,
    facts: Facts,
    stream: Path,
    backend: Backend,
    limit_s: float = _LIMIT_S,
    *,
    environment: str = HERE,
) -> SelfAgreement:
    """Run a model on the first samples twice, with no optimizer, and then as a backend does.

    A backend that is no CPU has no optimizers to leave out: only chance is looked for. Of a model
    that does not run without optimizers either, only ``failure`` is known.

    Args:
        stream: Samples of its inputs.
        limit_s: Seconds after which nothing is known: a model may run for ever.
        environment: Where it runs.

    Raises:
        WorkerFailed: Something from outside has ended the worker.
    """
    plain = Cpu(level="disabled", custom_ops=backend.custom_ops)
    if isinstance(backend, Cpu):
        plain = replace(
            plain, level=backend.level, disable=backend.disable, threads=backend.threads
        )
    rounded = facts.quantized or bool(_COARSE & set(facts.precisions))
    least_db = _COARSE_DB if rounded or facts.has("DequantizeLinear") else _LEAST_DB
    with open_temporary_folder() as folder:
        job = single_model_job(model, plain, stream, folder, "self", environment=environment)
        try:
            with Worker(job, timeout_s=limit_s) as worker:
                answer = worker.ask("compare_with_itself", samples=_SAMPLES, least_db=least_db)
        except WorkerFailed as error:
            if error.interruption not in (Interruption.TIME, Interruption.BUSY):
                error.demand_verdict()
            return SelfAgreement(failure=error.failure.reason)
    disable = answer["disable"]
    return SelfAgreement(
        random=tuple(answer["random"]),
        rest=answer["rest"],
        disable=tuple(disable or ()),
        level="disabled" if disable is None else None,
        decibels=answer["decibels"],
        failure=answer["failure"],
    )
