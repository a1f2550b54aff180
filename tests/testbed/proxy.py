"""A bad line between a client and the API server: plain HTTP in front, TLS behind, and faults where a test wants them.

    with Proxy(plane) as proxy:
        scheduler = AliquotScheduler(kubeconfig=proxy.kubeconfig, ...)
        proxy.add(Fault(BINDING, lost=True))           # the next Binding happens, and its answer is lost

It is like a load balancer: what has reached it goes on to the API server, also when the client is gone by then.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web

from testbed.plane import HOST, ControlPlane
from testbed.processes import free_port

BINDING = r"POST .*/binding$"
WATCHES = r"GET .*[?&]watch=.*"
ALWAYS = 1 << 30
_HOP = {"transfer-encoding", "content-length", "connection", "keep-alive", "host", "content-encoding"}


@dataclass(slots=True)
class Fault:
    """What happens to the next `times` requests that look like `what` ("METHOD path?query", a regular expression)."""

    what: str
    times: int = 1
    skip: int = 0  # so many pass unharmed first
    before: Callable[[], object] | None = None  # when it has come and nothing is sent on yet
    swallowed: bool = False  # it never reaches the API server
    held: float = 0.0  # seconds before it is sent on
    after: Callable[[], object] | None = None  # when the API server has answered and nothing is passed back yet
    late: float = 0.0  # seconds before the answer is passed back
    lost: bool = False  # the answer is not passed back: the connection is cut
    status: int | None = None  # what is answered in its place
    met: int = 0  # how many it has happened to

    def takes(self, asked: str) -> bool:
        line = asked if "?" in self.what else asked.partition("?")[0]
        if self.met >= self.times or re.fullmatch(self.what, line) is None:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.met += 1
        return True


class Proxy:
    """Serves from a thread of its own, from `with` on."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path | None = None) -> None:
        self._plane = plane
        self.port = free_port()
        self.kubeconfig = plane.folder / f"proxy-{self.port}.kubeconfig"
        said = yaml.safe_load((kubeconfig or plane.kubeconfig).read_text())
        said["clusters"][0]["cluster"] = {"server": f"http://{HOST}:{self.port}"}
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(said))
        self.requests: list[str] = []  # all that came, "METHOD path?query"
        self._faults: list[Fault] = []
        self._cut = self._quiet = False
        self._watching: set[asyncio.Transport] = set()
        self._handling: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy", daemon=True)
        self._ready, self._end = threading.Event(), asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def mend(self) -> None:
        """No faults from now on."""
        self._faults.clear()
        self._cut = self._quiet = False

    def cut_watches(self) -> None:
        """Each watch is cut at once; where something is being told, in the middle of the line."""
        self._cut = True
        self._loop.call_soon_threadsafe(self._abort_watches, 0.5)

    def quiet_watches(self, quiet: bool = True) -> None:
        """Watches stay open and tell nothing, until they may again: then all that happened meanwhile, in order."""
        self._quiet = quiet

    # How it is put together

    def _abort_watches(self, seconds: float) -> None:
        def end() -> None:
            for transport in list(self._watching):
                transport.abort()
            self._cut = False

        self._loop.call_later(seconds, end)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        tls = ssl.create_default_context(cafile=str(self._plane.ca_file))
        limit = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0, ssl=tls, force_close=True)  # no kept connection outlives a restart
        async with aiohttp.ClientSession(connector=connector, timeout=limit, auto_decompress=False) as session:
            self._session = session
            server = web.Server(self._handle)
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, HOST, self.port).start()
            self._ready.set()
            await self._end.wait()
            for task in list(self._handling):  # also those whose client is long gone
                task.cancel()
            await runner.cleanup()
        await asyncio.sleep(0.2)  # TLS says goodbye

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = f"{request.method} {request.raw_path}"
        self.requests.append(asked)
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        body = await request.read()
        fault = next((fault for fault in self._faults if fault.takes(asked)), None) or Fault("")
        if fault.before is not None:
            fault.before()
        if fault.swallowed:
            return self._answer_in_its_place(request, fault)
        await asyncio.sleep(fault.held)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        try:
            async with self._session.request(
                request.method, f"{self._plane.url}{request.raw_path}", data=body or None, headers=headers
            ) as answer:
                if "watch=" in request.raw_path and answer.status == 200:
                    return await self._pass_watch(request, answer)
                data = await answer.read()
        except (aiohttp.ClientError, OSError):
            return self._hang_up(request)
        if fault.after is not None:
            fault.after()
        await asyncio.sleep(fault.late)
        if fault.lost or fault.status is not None:
            return self._answer_in_its_place(request, fault)
        passed = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        if encoding := answer.headers.get("Content-Encoding"):
            passed["Content-Encoding"] = encoding
        return web.Response(body=data, status=answer.status, headers=passed)

    def _answer_in_its_place(self, request: web.BaseRequest, fault: Fault) -> web.StreamResponse:
        if fault.status is None:
            return self._hang_up(request)
        said = {
            "kind": "Status",
            "status": "Failure",
            "reason": "Fault",
            "message": "by the proxy",
            "code": fault.status,
        }
        return web.json_response(said, status=fault.status, headers={"Retry-After": "1"})

    @staticmethod
    def _hang_up(request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _pass_watch(self, request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        transport: Any = request.transport
        self._watching.add(transport)
        try:
            async for data in answer.content.iter_any():
                while self._quiet:
                    await asyncio.sleep(0.02)
                if self._cut:
                    await response.write(data[: len(data) // 2])
                    await asyncio.sleep(0.01)  # the half is on its way before the cut
                    transport.abort()
                    break
                await response.write(data)
        except (aiohttp.ClientError, OSError):
            transport.abort()
        finally:
            self._watching.discard(transport)
        return response
