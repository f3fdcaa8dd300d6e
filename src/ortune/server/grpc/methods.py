"""The service's methods that ask no model: what each says, in the protocol's JSON form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from ortune.protocol import metadata
from ortune.protocol.status import Refused, Status
from ortune.server.repository.repository import Repository
from ortune.server.repository.served import Served

Answering: TypeAlias = Callable[[Any], Awaitable[Mapping[str, Any]]]
"""A request's message to the content of the answer's."""

_LOG_FIELDS = {str: "string_param", bool: "bool_param", int: "uint32_param"}


class ServerMethods:
    """Everything but inference."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def by_name(self) -> dict[str, Answering]:
        """Return method -> what answers it."""
        return {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": _regions("system"),
            "SystemSharedMemoryRegister": _no_shared_memory,
            "SystemSharedMemoryUnregister": _nothing,
            "CudaSharedMemoryStatus": _regions("CUDA"),
            "CudaSharedMemoryRegister": _no_shared_memory,
            "CudaSharedMemoryUnregister": _nothing,
            "TraceSetting": self._trace,
            "LogSettings": _log,
        }

    async def _live(self, request: Any) -> Mapping[str, Any]:
        return {"live": True}

    async def _ready(self, request: Any) -> Mapping[str, Any]:
        return {"ready": self._repository.ready}

    async def _model_ready(self, request: Any) -> Mapping[str, Any]:
        """As Triton, say no of a model that there is not."""
        try:
            self._repository.model(request.name, request.version)
        except Refused as error:
            if error.status is Status.INVALID:
                raise
            return {"ready": False}
        return {"ready": self._repository.ready}

    async def _server_metadata(self, request: Any) -> Mapping[str, Any]:
        return metadata.server_metadata()

    async def _model_metadata(self, request: Any) -> Mapping[str, Any]:
        return self._repository.model(request.name, request.version).metadata()

    async def _config(self, request: Any) -> Mapping[str, Any]:
        return {"config": self._repository.model(request.name, request.version).config()}

    async def _statistics(self, request: Any) -> Mapping[str, Any]:
        return {"model_stats": [one.statistics() for one in self._asked(request)]}

    def _asked(self, request: Any) -> list[Served]:
        """Return the version that a request names, all of a model, or all there are."""
        if request.version:
            return [self._repository.model(request.name, request.version)]
        if request.name:
            self._repository.model(request.name)
        every = self._repository.models()
        return [one for one in every if request.name in ("", one.name)]

    async def _index(self, request: Any) -> Mapping[str, Any]:
        _demand_one_repository(request)
        return {"models": self._repository.index(request.ready)}

    async def _load(self, request: Any) -> Mapping[str, Any]:
        _demand_one_repository(request)
        given = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
            for name, value in request.parameters.items()
        }
        await self._repository.load(request.model_name, given)
        return {}

    async def _unload(self, request: Any) -> Mapping[str, Any]:
        _demand_one_repository(request)
        await self._repository.unload(request.model_name)
        return {}

    async def _trace(self, request: Any) -> Mapping[str, Any]:
        """Tell the settings of traces; those of this server are set where it is started."""
        if request.model_name:
            self._repository.model(request.model_name)
        asked = {name: list(value.value) or None for name, value in request.settings.items()}
        settings = {
            name: value if isinstance(value, list) else [value]
            for name, value in metadata.TRACE_SETTINGS.items()
        }
        metadata.check_unchanged(settings, asked)
        return {"settings": {name: {"value": value} for name, value in settings.items()}}


def _regions(kind: str) -> Answering:
    async def regions(request: Any) -> Mapping[str, Any]:
        if request.name:
            raise Refused(
                f"Unable to find {kind} shared memory region: '{request.name}'", Status.NOT_FOUND
            )
        return {}

    return regions


async def _no_shared_memory(request: Any) -> NoReturn:
    raise Refused(
        f"failed to register shared memory region '{request.name}': this server has none",
        Status.UNSUPPORTED,
        "send tensors in the request",
    )


async def _nothing(request: Any) -> Mapping[str, Any]:
    return {}


async def _log(request: Any) -> Mapping[str, Any]:
    """Tell the settings of the log; they are set where the server is started."""
    settings = {
        name: {_LOG_FIELDS[type(value)]: value} for name, value in metadata.LOG_SETTINGS.items()
    }
    choices = {
        name: value.WhichOneof("parameter_choice") for name, value in request.settings.items()
    }
    asked = {
        name: {choice: getattr(request.settings[name], choice)} if choice else None
        for name, choice in choices.items()
    }
    metadata.check_unchanged(settings, asked)
    return {"settings": settings}


def _demand_one_repository(request: Any) -> None:
    if request.repository_name:
        raise Refused("'repository_name' specification is not supported", Status.UNSUPPORTED)
