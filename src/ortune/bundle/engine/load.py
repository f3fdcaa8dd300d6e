"""Load a bundle or a plain model and call it like a function."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.bundle.engine import archive, consent
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.inputs import attach_pictures
from ortune.bundle.engine.instances import Serving, load_serving, read_serving
from ortune.bundle.engine.manifest import Signature
from ortune.bundle.engine.plans import (
    BundleArchive,
    load_compiled,
    open_plan,
    refuse_missing_backend,
)
from ortune.bundle.engine.signing import verify_signature
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.plugins import spelling
from ortune.core.runtime_conflict import warn_of_runtime_conflict


def load_engine(
    path: str | Path,
    *,
    on: str | Backend | None = None,
    device: str | None = None,
    instances: int | str = 0,
    custom_ops: bool | str | Sequence[str] = False,
    max_batch: int = 0,
    max_delay_us: int = 0,
    preferred: Sequence[int] = (),
    max_queue: int = 0,
    require_signature: str | Path | None = None,
    compiled: bool = True,
) -> Engine:
    """Open a bundle with exactly the settings it was measured with, or a plain model.

    Of several plans in a bundle the first that runs here is taken, in the order that they were
    measured in. It is served as a goal search wrote into it, but for what is given here.

    Args:
        path: A bundle, or an ONNX model.
        on: Backend of a plain model, such as ``cpu(threads=2)``; the CPU's default without it. Of
            a bundle: the plan to take, by the name of its backend or by the full spelling. Where
            none was measured on it, the model runs there all the same, with a warning.
        device: Of instances that name none, such as ``cpu`` or ``gpu0``.
        instances: Sessions of every model, each on CPUs of its own; threads are divided among
            them. A number, or text such as ``2@gpu0,2@gpu1``; 0 takes the bundle's, or 1.
        custom_ops: Libraries of custom operators of a plain model. They are code: those that a
            bundle brings are loaded only when this is True.
        max_batch: Rows that are computed together at most; 0 takes the bundle's, or 8. Of
            convolutions on CUDA, or 1: every batch is filled up to what is given.
        max_delay_us: Microseconds that a request waits for others; 0 takes the bundle's, or none.
        preferred: Rows that are enough for requests to wait no longer, such as ``(4, 8)``.
        max_queue: Requests of `submit` that wait at most; 0 takes 1024.
        require_signature: Public key, a PEM file: a bundle that its owner did not sign is not
            opened.
        compiled: Open what a provider compiled when a bundle was packed, where provider, versions
            and device are the same. Say False where you would not trust the file.

    Raises:
        BadModel: The file is damaged, was changed after packing, no longer answers as packed, or
            has no signature by the key that is required.
        BadSettings: `on` is wrong; the bundle brings custom operators that are not allowed, or a
            library or the key cannot be used; there are more instances than CPUs, or a device is
            named that the backend does not run on.
        BackendMissing: The backend of a plain model, or of the plan of `on`, cannot run here.
    """
    make_serving = partial(
        read_serving, instances, device, max_batch, max_delay_us, preferred, max_queue
    )
    path, how = Path(path), make_serving()
    warn_of_runtime_conflict()
    backend = on if on is None or isinstance(on, Backend) else spelling.parse_plugin(Backend, on)
    if not archive.is_bundle(path):
        if require_signature is not None:
            raise BadSettings(
                f"{path.name} is a plain model, and only bundles are signed",
                fix="give a bundle, or leave the key out",
            )
        return _open_plain(path, backend or Cpu(), custom_ops, how)
    if require_signature is not None:
        verify_signature(path, require_signature)
    if not isinstance(custom_ops, bool):
        raise BadSettings(
            f"{path.name} brings its own libraries, so '{custom_ops}' does not apply",
            fix="give custom_ops=True (--allow-custom-ops) if you trust where it comes from",
        )
    with ExitStack() as stack:
        with archive.open_bundle(path) as (file, manifest):
            consent.require_consent(path.name, manifest, custom_ops)
            how = make_serving(packed=load_serving(path.name, file, manifest))
            ready = load_compiled(path.name, file, manifest) if compiled else {}
            opened = BundleArchive(path.name, file, manifest, how, ready, custom_ops)
            running = open_plan(stack, opened, backend)
            attach_pictures(running.calls, path.name, file, manifest)
        parts = running.calls, running.backend, stack.pop_all(), running.fallback, running.plan
        return Engine(*parts, compiled=running.compiled)


def _open_plain(
    path: Path, backend: Backend, custom_ops: bool | str | Sequence[str], how: Serving
) -> Engine:
    """Open a plain model."""
    from ortune.graph.io import file
    from ortune.graph.ir import spec

    if custom_ops is True:
        raise BadSettings(f"{path.name} brings no libraries", fix="name one: custom_ops='lib.so'")
    refuse_missing_backend(backend)
    if custom_ops:
        if not isinstance(backend, Cpu):
            raise BadSettings(
                f"backend '{backend.name()}' takes no custom operators", fix="use on='cpu'"
            )
        backend = replace(
            backend, custom_ops=(custom_ops,) if isinstance(custom_ops, str) else tuple(custom_ops)
        )
    model = file.load(path)
    signature = Signature(spec.list_inputs(model), spec.list_outputs(model))
    del model
    backend = how.share_threads(backend)
    with ExitStack() as stack:
        instances = how.open_instances(stack, backend, path, path.name)
        how, fills = how.settle_batches(backend, path)
        call = Call(instances, signature, how, backend=backend, fills=fills)
        stack.callback(call.close)
        return Engine({"": call}, backend, stack.pop_all())
