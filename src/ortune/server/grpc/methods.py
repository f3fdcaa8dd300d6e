"""The service's methods that ask no model: what each says, in the protocol's JSON form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from ortune.protocol import metadata
from ortune.protocol.status import Refused, Status
from ortune.server.repository.repository import Repository

Content: TypeAlias = Mapping[str, Any]
Answering: TypeAlias = Callable[[Any], Content | Awaitable[Content]]
"""A request's message to the content of the answer's."""

_LOG_FIELDS = {str: "string_param", bool: "bool_param", int: "uint32_param"}


class ServerMethods:
    """Everything but inference."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def by_name(self) -> dict[str, Answering]:
        """Return method -> what answers it."""
        models = self._repository
        return {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": models.ready},
            "ModelReady": self._model_ready,
            "ServerMetadata": lambda _: metadata.server_metadata(),
            "ModelMetadata": lambda asked: models.model(asked.name, asked.version).metadata(),
            "ModelConfig": lambda asked: {
                "config": models.model(asked.name, asked.version).config()
            },
            "ModelStatistics": lambda asked: {
                "model_stats": models.statistics(asked.name, asked.version)
            },
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": lambda asked: _regions(asked, "system"),
            "SystemSharedMemoryRegister": _no_shared_memory,
            "SystemSharedMemoryUnregister": lambda _: {},
            "CudaSharedMemoryStatus": lambda asked: _regions(asked, "CUDA"),
            "CudaSharedMemoryRegister": _no_shared_memory,
            "CudaSharedMemoryUnregister": lambda _: {},
            "TraceSetting": self._trace,
            "LogSettings": _log,
        }

    def _model_ready(self, request: Any) -> Mapping[str, Any]:
        """As Triton, say no of a model that there is not."""
        try:
            self._repository.model(request.name, request.version)
        except Refused as error:
            if error.status is Status.INVALID:
                raise
            return {"ready": False}
        return {"ready": self._repository.ready}

    def _index(self, request: Any) -> Mapping[str, Any]:
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

    def _trace(self, request: Any) -> Mapping[str, Any]:
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


def _regions(request: Any, kind: str) -> Mapping[str, Any]:
    if request.name:
        what = f"Unable to find {kind} shared memory region: '{request.name}'"
        raise Refused(what, Status.NOT_FOUND)
    return {}


def _no_shared_memory(request: Any) -> NoReturn:
    raise Refused(
        f"failed to register shared memory region '{request.name}': this server has none",
        Status.UNSUPPORTED,
        "send tensors in the request",
    )


def _log(request: Any) -> Mapping[str, Any]:
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
