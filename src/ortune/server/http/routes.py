"""The protocol's routes: what models and the server say of themselves, and their control."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson

from ortune.protocol.metadata import server_metadata
from ortune.protocol.status import Refused, Status
from ortune.server.http.bodies import Bodies
from ortune.server.http.exchange import Exchange, HttpError, Reply, json_reply
from ortune.server.http.inference import HttpInference
from ortune.server.repository import metrics
from ortune.server.repository.repository import Repository

Route: TypeAlias = tuple[tuple[str, ...], Callable[[Exchange], Awaitable[Reply]]]
"""Methods, and what answers."""

TRACE = {
    "trace_file": "",
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
LOGGING = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
_GET, _POST, _BOTH = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "POST")


class Routes:
    """Finds what answers a request.

    Args:
        bodies: Reads theirs.
    """

    def __init__(self, repository: Repository, bodies: Bodies) -> None:
        self._repository, self._bodies = repository, bodies
        self._infer: Route = _POST, HttpInference(repository, bodies).infer

    def find(self, exchange: Exchange) -> Route:
        """Return what answers; the exchange learns which model is meant.

        Raises:
            HttpError: Nothing does.
        """
        match exchange.path:
            case ["v2", "models", name, *rest] if rest or name != "stats":
                return self._of_model(exchange, name, rest)
            case ["v2", "health", "live"]:
                return _GET, _live
            case ["v2", "health", "ready"]:
                return _GET, self._ready
            case ["v2"]:
                return _GET, _server
            case ["v2", "models", "stats"]:
                return _GET, self._statistics
            case ["v2", "repository", "index"]:
                return _POST, self._index
            case ["v2", "repository", "models", name, "load" | "unload" as action]:
                exchange.model, exchange.told = name, True
                return _POST, self._load if action == "load" else self._unload
            case ["v2", "systemsharedmemory" | "cudasharedmemory", *rest]:
                return _shared_memory(rest)
            case ["v2", "trace", "setting"]:
                return _BOTH, self._trace
            case ["v2", "logging"]:
                return _BOTH, self._logging
            case ["metrics"]:
                return _GET, self._metrics
        raise _no_route()

    def _of_model(self, exchange: Exchange, name: str, rest: list[str]) -> Route:
        exchange.model = name
        if len(rest) > 1 and rest[0] == "versions":
            exchange.version, rest = rest[1], rest[2:]
        match rest:
            case ["infer"]:
                return self._infer
            case []:
                return _GET, self._metadata
            case ["ready"]:
                return _GET, self._model_ready
            case ["config"]:
                return _GET, self._config
            case ["stats"]:
                return _GET, self._statistics
            case ["trace", "setting"]:
                return _BOTH, self._trace
        raise _no_route()

    # --- the server -------------------------------------------------------------------------

    async def _ready(self, exchange: Exchange) -> Reply:
        return Reply(200 if self._repository.ready else 400)

    async def _metrics(self, exchange: Exchange) -> Reply:
        text = metrics.text(self._repository.models())
        kind = (b"content-type", metrics.CONTENT_TYPE.encode())
        return Reply(200, (text.encode(),), (kind,))

    async def _trace(self, exchange: Exchange) -> Reply:
        if exchange.model:
            self._repository.model(exchange.model)
        return await self._settings(exchange, TRACE, "spans are sent by `ortune serve --trace`")

    async def _logging(self, exchange: Exchange) -> Reply:
        return await self._settings(
            exchange, LOGGING, "the log is chosen by `ortune serve --log-json`"
        )

    async def _settings(self, exchange: Exchange, held: dict[str, Any], fix: str) -> Reply:
        asked = await self._json(exchange)
        if any(value is not None and held.get(key) != value for key, value in asked.items()):
            raise Refused("settings of a running server do not change", Status.UNSUPPORTED, fix)
        return json_reply(held)

    # --- a model ----------------------------------------------------------------------------

    async def _metadata(self, exchange: Exchange) -> Reply:
        found = self._repository.model(exchange.model, exchange.version)
        return json_reply(found.metadata())

    async def _config(self, exchange: Exchange) -> Reply:
        found = self._repository.model(exchange.model, exchange.version)
        return json_reply(found.config())

    async def _model_ready(self, exchange: Exchange) -> Reply:
        try:
            self._repository.model(exchange.model, exchange.version)
        except Refused as error:
            raise HttpError(400, error.text) from None
        return Reply()

    async def _statistics(self, exchange: Exchange) -> Reply:
        """Tell those of one version, of all versions of a model, or of all models."""
        name, version = exchange.model, exchange.version
        if name:
            self._repository.model(name, version)
        found = [
            one.statistics()
            for one in self._repository.models()
            if name in ("", one.name) and version in ("", one.version)
        ]
        return json_reply({"model_stats": found})

    # --- the repository ---------------------------------------------------------------------

    async def _index(self, exchange: Exchange) -> Reply:
        asked = await self._json(exchange)
        return json_reply(self._repository.index(asked.get("ready") is True))

    async def _load(self, exchange: Exchange) -> Reply:
        parameters = (await self._json(exchange)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise Refused("'parameters' of a load request is no object")
        await self._repository.load(exchange.model, parameters)
        return Reply()

    async def _unload(self, exchange: Exchange) -> Reply:
        await self._json(exchange)
        await self._repository.unload(exchange.model)
        return Reply()

    async def _json(self, exchange: Exchange) -> dict[str, Any]:
        """Return the body of a request that may have none."""
        body = await self._bodies.read(exchange)
        self._bodies.release(len(body))
        try:
            found = orjson.loads(body) if body else {}
        except orjson.JSONDecodeError as error:
            raise Refused(f"failed to parse the request JSON buffer: {error}") from None
        if not isinstance(found, dict):
            raise Refused("the body of the request is no JSON object")
        return found


async def _live(exchange: Exchange) -> Reply:
    return Reply()


async def _server(exchange: Exchange) -> Reply:
    return json_reply(server_metadata())


def _shared_memory(rest: list[str]) -> Route:
    """Return what answers for regions of shared memory: there are none."""
    match rest:
        case ["status"]:
            return _GET, _no_regions
        case ["region", _, "status"]:
            return _GET, _no_region
        case ["unregister"] | ["region", _, "unregister"]:
            return _POST, _live
        case ["region", _, "register"]:
            return _POST, _not_registered
    raise _no_route()


async def _no_regions(exchange: Exchange) -> Reply:
    return json_reply([])


async def _no_region(exchange: Exchange) -> Reply:
    region = f"{exchange.path[1].removesuffix('sharedmemory')} shared memory region"
    raise Refused(f"Unable to find {region}: '{exchange.path[3]}'", Status.NOT_FOUND)


async def _not_registered(exchange: Exchange) -> Reply:
    raise Refused(
        f"failed to register shared memory region '{exchange.path[3]}': not supported",
        Status.UNSUPPORTED,
        "send tensors in the request itself",
    )


def _no_route() -> HttpError:
    return HttpError(404, "Not Found: routes begin with /v2, as the Open Inference Protocol says")
