"""What a server says of itself and its models, in the protocol's JSON, over either protocol."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote

from ortune.core.errors import BadData, OrtuneError
from ortune.load_testing.url import ServerUrl

_TIMEOUT_S = 30.0


class Admin(Protocol):
    """One connection to a server: of several processes behind a port always to the same."""

    def models(self) -> list[str]:
        """Return the names of models that are ready; empty where the server has no such list.

        Raises:
            BadData: It asks for a token.
        """
        ...

    def metadata(self, model: str, version: str) -> Mapping[str, Any]:
        """Return what a model says of itself.

        Raises:
            BadData: The server knows no such model.
        """
        ...

    def statistics(self, model: str, version: str) -> Mapping[str, Any] | None:
        """Return a model's statistics; None where the server has none."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def connected(address: ServerUrl, *, ca: str = "", token: str = "") -> Admin:
    """Return a connection to a server.

    Raises:
        OrtuneError: Nobody answers there.
    """
    if address.protocol == "http":
        return _Http(address, ca, token)
    return _Grpc(address, ca, token)


def _silent(address: ServerUrl, why: object) -> OrtuneError:
    trust = ", and name who issued its certificate with --ca" if address.tls else ""
    return OrtuneError(
        f"no server answers at {address}: {why}", fix=f"start it, check host and port{trust}"
    )


def _locked(why: str) -> BadData:
    return BadData(f"the server lets nobody in: {why}", fix="give the token with --token-file")


def _refused(model: str, why: str, names: list[str]) -> BadData:
    known = f"use --model with one of: {', '.join(names)}" if names else "check --model"
    return BadData(f"the server refuses model '{model}': {why}", fix=known)


class _Http:
    """Over HTTP/REST."""

    def __init__(self, address: ServerUrl, ca: str, token: str) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        host, port = address.host, address.port
        if address.tls:
            from ortune.load_testing.client.http import context

            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_TIMEOUT_S, context=context(ca)
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        self._ask("GET", "/v2/health/live")

    def models(self) -> list[str]:
        status, found = self._ask("POST", "/v2/repository/index", b'{"ready": true}')
        if status in (401, 403):
            raise _locked(_said(found) or f"status {status}")
        listed = found if status == 200 and isinstance(found, list) else []
        return sorted({str(one.get("name")) for one in listed if isinstance(one, dict)})

    def metadata(self, model: str, version: str) -> Mapping[str, Any]:
        status, found = self._ask("GET", path(model, version))
        if status != 200 or not isinstance(found, dict):
            raise _refused(model, _said(found) or f"status {status}", self.models())
        return found

    def statistics(self, model: str, version: str) -> Mapping[str, Any] | None:
        status, found = self._ask("GET", f"{path(model, version)}/stats")
        return _first(found) if status == 200 else None

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, where: str, body: bytes | None = None) -> tuple[int, Any]:
        try:
            try:
                return self._once(method, where, body)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._connection.close()  # the server ends what is idle for long
                return self._once(method, where, body)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _silent(self._address, error) from None

    def _once(self, method: str, where: str, body: bytes | None) -> tuple[int, Any]:
        self._connection.request(method, where, body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        with suppress(ValueError):
            return answer.status, json.loads(text or b"null")
        return answer.status, None


class _Grpc:
    """Over gRPC."""

    def __init__(self, address: ServerUrl, ca: str, token: str) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it logs every failed handshake
        import grpc

        from ortune.load_testing.client.grpc import OPTIONS, credentials
        from ortune.protocol import messages

        self._address, self._errors, self._messages = address, grpc.RpcError, messages
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None
        self._channel = (
            grpc.secure_channel(address.netloc, credentials(ca), options=OPTIONS)
            if address.tls
            else grpc.insecure_channel(address.netloc, options=OPTIONS)
        )
        try:
            grpc.channel_ready_future(self._channel).result(timeout=_TIMEOUT_S / 3)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise _silent(address, "no connection") from None

    def models(self) -> list[str]:
        try:
            found = self._ask("RepositoryIndex", ready=True)
        except self._errors as error:
            if error.code().name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                raise _locked(error.details()) from None
            return []
        return sorted({str(one["name"]) for one in found.get("models", ())})

    def metadata(self, model: str, version: str) -> Mapping[str, Any]:
        try:
            found = self._ask("ModelMetadata", name=model, version=version)
        except self._errors as error:
            raise _refused(model, error.details(), self.models()) from None
        for one in (*found.get("inputs", ()), *found.get("outputs", ())):
            one["shape"] = [int(dim) for dim in one.get("shape", ())]  # JSON of protobuf: texts
        return found

    def statistics(self, model: str, version: str) -> Mapping[str, Any] | None:
        with suppress(self._errors):
            return _first(self._ask("ModelStatistics", name=model, version=version))
        return None

    def close(self) -> None:
        self._channel.close()

    def _ask(self, method: str, **given: Any) -> dict[str, Any]:
        from google.protobuf.json_format import MessageToDict

        answer = self._messages.message(f"{method}Response")
        call = self._channel.unary_unary(
            f"/{self._messages.SERVICE}/{method}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        request = self._messages.message(f"{method}Request")(**given)
        answered = call(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        found: dict[str, Any] = MessageToDict(answered, preserving_proto_field_name=True)
        return found


def path(model: str, version: str) -> str:
    """Return where a model is in a server's URLs."""
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{version}" if version else "")


def _said(found: Any) -> str:
    return str(found.get("error", "")) if isinstance(found, dict) else ""


def _first(found: Any) -> Mapping[str, Any] | None:
    listed = found.get("model_stats") if isinstance(found, dict) else None
    return listed[0] if listed else None
