"""A small Kubernetes client: JSON over HTTP, decoded straight into the fields that are used.

Two ways to fail, because a caller must know whether a write may have happened:

    ApiError      the API server refused: it did not happen
    Unreachable   no answer, or half of one: it may have happened
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlencode

import msgspec

from aliquot.adapters.kubernetes.connections import Connections, NotSentError, can_connect
from aliquot.adapters.kubernetes.kubeconfig import KubeConfigError, Server, find_server, monotonic
from aliquot.model.decoding.shallowjson import decoded, shallow

if TYPE_CHECKING:
    import aiohttp  # loaded with its first request: the scheduler sends others before

__all__ = ["ApiError", "Kube", "KubeConfigError", "NotSent", "Server", "Unreachable", "find_server"]

_T = TypeVar("_T")
Form = Literal["merge", "json", "strategic", "apply"]

_FORMS = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
_CONNECTIONS = 64
_DIRECT = 64  # of the cheaper ones beside them
_SILENCE = 150.0  # seconds; a watch brings something about every minute (a bookmark), or it is dead
_CHUNK = 1 << 20
_JSON = "application/json"


class ApiError(Exception):
    """The API server refused."""

    def __init__(self, status: int, reason: str, message: str, details: object = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details


class Unreachable(Exception):
    """No answer. A write may or may not have happened."""


class NotSent(Unreachable):
    """No answer, because nothing was sent: a write has not happened."""


class _Status(msgspec.Struct):
    reason: str = ""
    message: str = ""
    details: Any = None


def headers_of(server: Server, agent: str) -> list[tuple[str, str]]:
    """The headers of every request by that agent, but for the token."""
    # No compression: near the API server, compressing a list of 5,000 nodes takes longer than sending it.
    return [("User-Agent", agent), ("Accept-Encoding", "identity"), *server.headers]


class Kube:
    """A client of one API server, over a few kept connections. An async context manager.

    `into` is the msgspec type that an answer is decoded into; `bytes` leaves it as it came.
    """

    def __init__(self, server: Server, *, agent: str = "aliquot") -> None:
        self.server = server
        self._agent = agent
        self._session: aiohttp.ClientSession | None = None
        self._direct: Connections | None = None  # where a request needs nothing that only aiohttp can do
        self._entered = False
        self._login = asyncio.Lock()

    async def __aenter__(self) -> Kube:
        if can_connect(self.server):
            self._direct = Connections(self.server, headers_of(self.server, self._agent), _DIRECT)
        self._entered = True
        return self

    def _http(self) -> aiohttp.ClientSession:
        import aiohttp

        assert self._entered, "a Kube is used as `async with Kube(server)`"
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self.server.tls or True),
                headers=headers_of(self.server, self._agent),
                proxy=self.server.proxy,
                read_bufsize=_CHUNK,
            )
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._direct is not None:
            self._direct.close()
        self._entered = False
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        into: Any = Any,
        timeout: float = 10.0,
        connect: float | None = None,
    ) -> Any:
        """The object, or list, at the path. `connect` as for `create`: for long lists."""
        return await self._ask("GET", path, None, None, params, into, timeout, connect)

    async def create(
        self,
        path: str,
        body: object,
        *,
        params: Mapping[str, str] | None = None,
        into: Any = Any,
        timeout: float = 10.0,
        connect: float | None = None,
    ) -> Any:
        """POST: a new object in the collection. Not sent if no connection is free within `connect` seconds, which also
        chooses the cheaper way to send it: for requests that are many, as binds."""
        return await self._ask("POST", path, body, _JSON, params, into, timeout, connect)

    async def replace(
        self,
        path: str,
        body: object,
        *,
        params: Mapping[str, str] | None = None,
        into: Any = Any,
        timeout: float = 10.0,
    ) -> Any:
        """PUT: the whole object; refused with 409 if its resourceVersion is no longer the one in `body`."""
        return await self._ask("PUT", path, body, _JSON, params, into, timeout)

    async def patch(
        self,
        path: str,
        body: object,
        *,
        form: Form = "merge",
        params: Mapping[str, str] | None = None,
        into: Any = Any,
        timeout: float = 10.0,
    ) -> Any:
        """PATCH: a part of the object."""
        return await self._ask("PATCH", path, body, _FORMS[form], params, into, timeout)

    async def delete(
        self, path: str, *, params: Mapping[str, str] | None = None, into: Any = Any, timeout: float = 10.0
    ) -> Any:
        """DELETE."""
        return await self._ask("DELETE", path, None, None, params, into, timeout)

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[list[bytes]]:
        """The lines of a watch, as many at a time as have come. Ends when the server ends it. Raises both errors."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=_SILENCE)
        rest = b""
        try:
            async with await self._send("GET", path, None, None, {**params, "watch": "1"}, limit) as answer:
                if answer.status != 200:
                    raise _refusal(answer.status, await answer.read())
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if lines:
                        yield lines
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(_in_words(error)) from error

    async def _ask(
        self,
        method: str,
        path: str,
        body: object,
        form: str | None,
        params: Mapping[str, str] | None,
        into: Any,
        timeout: float,
        connect: float | None = None,
    ) -> Any:
        data = None if form is None else msgspec.json.encode(body)
        try:
            # Over both attempts, if there are two: a bind must not happen much later than it was requested.
            async with asyncio.timeout(timeout):
                if connect is not None and self._direct is not None:
                    status, raw = await self._send_directly(method, path, data, form, params, connect)
                else:
                    import aiohttp

                    limit = aiohttp.ClientTimeout(total=timeout, connect=connect)
                    async with await self._send(method, path, data, form, params, limit) as answer:
                        status, raw = answer.status, await answer.read()
        except NotSentError as error:
            raise NotSent(f"{method} {path}: {error}") from error
        except _failures() as error:
            raise Unreachable(f"{method} {path}: {_in_words(error)}") from error
        if status >= 400:
            raise _refusal(status, raw)
        try:
            return raw if into is bytes else await read_json(partial(msgspec.json.decode, type=into), raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unreachable(f"{method} {path}: an unreadable answer: {error}") from error

    async def _send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        form: str | None,
        params: Mapping[str, str] | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """Sent again with a fresh token if the first was not accepted: it may have expired."""
        session = self._http()
        headers = {"Accept": _JSON} if form is None else {"Accept": _JSON, "Content-Type": form}
        token = None
        for fresh in (False, True):
            token = await self._token(token)
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            answer = await session.request(
                method,
                self.server.url + path,
                data=data,
                headers=headers,
                params=params,
                timeout=timeout,
                server_hostname=self.server.server_name,
            )
            if answer.status != 401 or fresh or token is None:
                break
            answer.release()
        return answer

    async def _send_directly(
        self,
        method: str,
        path: str,
        data: bytes | None,
        form: str | None,
        params: Mapping[str, str] | None,
        connect: float,
    ) -> tuple[int, bytes]:
        """The same without aiohttp; status and body of the answer."""
        assert self._direct is not None
        target = f"{path}?{urlencode(params)}" if params else path
        token, status, raw = None, 0, b""
        for fresh in (False, True):
            token = await self._token(token)
            headers = [("Accept", _JSON)] if form is None else [("Accept", _JSON), ("Content-Type", form)]
            headers += [("Authorization", f"Bearer {token}")] if token else []
            status, raw = await self._direct.request(method, target, headers, data, connect=connect)
            if status != 401 or fresh or token is None:
                break
        return status, raw

    async def _token(self, refused: str | None) -> str | None:
        """The current token; `refused` is one that the API server has just not accepted."""
        credential = self.server.credential
        try:
            if not credential.runs_program(refused):
                # Where a program gives them, another request has got a new one meanwhile.
                return credential.token(monotonic(), fresh=refused is not None and not credential.by_program)
            async with self._login:  # once for all requests, and in a thread
                fresh = refused is not None and credential.runs_program(refused)
                return await asyncio.to_thread(credential.token, monotonic(), fresh=fresh)
        except KubeConfigError as error:
            raise Unreachable(str(error)) from error


async def read_json(decode: Callable[[bytes], _T], raw: bytes) -> _T:
    """What `decode` makes of an answer, without what is nested too deep for it; others run while that is cut off."""
    try:
        return decode(raw)
    except RecursionError:
        return decode(await asyncio.to_thread(shallow, raw))


def _refusal(status: int, raw: bytes) -> ApiError:
    try:
        answer = decoded(partial(msgspec.json.decode, type=_Status), raw)
    except (
        msgspec.MsgspecError,
        RecursionError,
    ):  # not the API server itself: a proxy, or a server that is starting
        answer = _Status(message=raw[:200].decode(errors="replace").strip())
    return ApiError(status, answer.reason, answer.message or f"HTTP {status}", answer.details)


def _failures() -> tuple[type[BaseException], ...]:
    """What a request may raise."""
    import aiohttp

    return (aiohttp.ClientError, TimeoutError, OSError)


def _in_words(error: BaseException) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
