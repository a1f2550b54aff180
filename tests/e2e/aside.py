"""A part of the product on the control plane, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from aliquot.adapters.kubernetes.kube import Kube, find_server
from testbed.plane import ControlPlane

T = TypeVar("T")


class Aside:
    """Runs `work(kube)` until the block ends; `do` runs something beside it, in its loop."""

    def __init__(self, plane: ControlPlane, work: Callable[[Kube], Awaitable[None]], *, account: Any = None) -> None:
        self._server = find_server(account or plane.kubeconfig)
        self._work = work
        self._loop = asyncio.new_event_loop()
        self._ended: asyncio.Event
        self._ready = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self.error is not None and error is None:
            raise self.error

    def do(self, call: Callable[..., T], *args: Any) -> None:
        """Calls it in the loop, soon."""
        self._loop.call_soon_threadsafe(call, *args)

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        except BaseException as error:
            self.error = error
        finally:
            self._loop.close()

    async def _run(self) -> None:
        self._ended = asyncio.Event()
        async with Kube(self._server) as kube:
            working = asyncio.ensure_future(self._work(kube))
            ending = asyncio.ensure_future(self._ended.wait())
            self._ready.set()
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            for task in (working, ending):
                task.cancel()
            results = await asyncio.gather(working, ending, return_exceptions=True)
        await asyncio.sleep(0.25)  # connections with TLS say goodbye to each other before they close
        for result in results:
            if isinstance(result, Exception):
                raise result
