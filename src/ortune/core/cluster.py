"""Ray, on which ortune runs where one machine is not enough (extra `ray`)."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from ortune.core.errors import BadSettings, summarize_error


def is_ray(executor: str) -> bool:
    """Whether ``--executor`` asks for Ray."""
    return executor.partition("#")[0] == "ray" or executor.startswith("ray://")


def list_node_cpus() -> list[int]:
    """Return the CPUs of every live node of the cluster that is open; a head may have none."""
    return [int(node["Resources"].get("CPU", 0)) for node in list_live_nodes()]


def list_live_nodes() -> list[dict[str, Any]]:
    """Return the live nodes of the cluster that is open, as `ray.nodes` describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


@contextmanager
def open_cluster(executor: str) -> Iterator[Any]:
    """Give the module `ray`, connected, while the block runs; what was started here ends with it.

    ``ray`` joins the cluster that ``RAY_ADDRESS`` or this machine has, else starts one on this
    machine; ``ray://HOST:PORT`` joins that of another. Our own package travels there, once a
    version; the packages that it imports must be installed on every node. What is printed within
    the block goes to the standard error.

    Raises:
        BadSettings: The package is missing, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError:
        raise BadSettings(
            f"--executor {executor} needs the package ray",
            fix="pip install 'ray[data,default,serve]'",
        ) from None
    if ray.is_initialized():  # by the caller, whose it stays
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing out
    os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: whatever runs beside comes first
    try:
        ray.init(
            address=None if executor == "ray" else executor,
            runtime_env={"py_modules": [str(Path(__file__).parents[1])]},
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False if executor == "ray" else None,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise BadSettings(
            f"no Ray cluster answers at '{executor}': {summarize_error(error)}",
            fix="start one with `ray start --head`, with the RAY_AUTH_MODE and token of this "
            "side, or write --executor ray",
        ) from None
    try:
        with redirect_stdout(sys.stderr):  # Ray reports lost nodes on the standard output
            yield ray
    finally:
        ray.shutdown()
