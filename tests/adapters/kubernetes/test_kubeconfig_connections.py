"""A kubeconfig's connection fields against real sockets: TLS names, proxies, passwords and impersonation."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.kubernetes.certificates import Pair, make_authority
from aliquot.adapters.kubernetes.kube import Kube, Unreachable
from aliquot.adapters.kubernetes.kubeconfig import Server, read_kubeconfig
from kit.clusters.apiserver import PATH, ApiServer
from kit.clusters.kubeconfigs import serving
from kit.running.waiting import until

Json = dict[str, Any]


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make_authority("test", time.time(), 1e6)


def configured(folder: Path, authority: Pair, cluster: Json, user: Json | None = None) -> Server:
    ca = {"certificate-authority-data": base64.b64encode(authority.certificate).decode()}
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {**ca, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    (folder / "config").write_text(json.dumps(config))
    return read_kubeconfig(folder / "config")


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 20.0))


async def first_line(kube: Kube) -> bytes:
    async for lines in kube.watch(PATH, {"resourceVersion": "100"}):
        return lines[0]
    return b""


class HttpProxy:
    """A proxy for CONNECT and for plain requests. It records the head of each request."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.heads: list[str] = []
        self._tls = tls

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = server.sockets[0].getsockname()[1]
        yield f"http{'s' if self._tls else ''}://me:secret@127.0.0.1:{port}"
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        method, target, _ = head.split(" ", 2)
        place = target if method == "CONNECT" else target.split("/")[2]
        behind, ahead = await asyncio.open_connection(*place.rsplit(":", 1))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            ahead.write(head.encode())
        await asyncio.gather(self._copy(reader, ahead), self._copy(behind, writer), return_exceptions=True)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(1 << 16):
            sink.write(chunk)
        sink.close()


def test_tls_server_name_is_the_name_that_the_certificate_must_have(tmp_path: Path, authority: Pair) -> None:
    async def scene() -> None:
        tls = serving(authority, "k8s.example")
        names: list[str | None] = []
        tls.sni_callback = lambda _socket, name, _context: names.append(name)
        async with ApiServer(tls) as server:
            cluster = {"server": server.url}
            async with Kube(configured(tmp_path, authority, cluster)) as kube:
                with pytest.raises(Unreachable, match="certificate"):
                    await kube.get(PATH)
            async with Kube(configured(tmp_path, authority, {**cluster, "tls-server-name": "k8s.example"})) as kube:
                assert await kube.get(PATH)
            async with Kube(configured(tmp_path, authority, {**cluster, "tls-server-name": "other.example"})) as kube:
                with pytest.raises(Unreachable, match="certificate"):
                    await kube.get(PATH)
        assert names[1:] == ["k8s.example", "other.example"], "the server is asked for that name, too"

    play(scene)


@pytest.mark.parametrize("secure_proxy", [False, True], ids=["http proxy", "https proxy"])
def test_proxy_url_carries_requests_and_watches_in_a_tunnel(
    tmp_path: Path, authority: Pair, secure_proxy: bool
) -> None:
    async def scene() -> None:
        proxy = HttpProxy(serving(authority, "127.0.0.1") if secure_proxy else None)
        async with ApiServer(serving(authority, "k8s.example")) as server, proxy.serve() as url:
            cluster = {"server": server.url, "proxy-url": url, "tls-server-name": "k8s.example"}
            async with Kube(configured(tmp_path, authority, cluster, {"token": "t"})) as kube:
                assert (await kube.get("/api/v1/nodes/n"))["path"] == "/api/v1/nodes/n"
                watch = asyncio.create_task(first_line(kube))
                await until(lambda: server.watching)
                server.put("a")
                assert b'"ADDED"' in await watch
        login = base64.b64encode(b"me:secret").decode()
        for head in proxy.heads:
            assert head.startswith(f"CONNECT {server.url.removeprefix('https://')} ")
            assert f"Proxy-Authorization: Basic {login}" in head
            assert "Bearer" not in head, "the proxy does not see the token"
        assert proxy.heads
        assert all("Proxy-Authorization" not in call.headers for call in server.calls)

    play(scene)


def test_proxy_url_carries_plain_http(tmp_path: Path, authority: Pair) -> None:
    async def scene() -> None:
        proxy = HttpProxy()
        async with ApiServer() as server, proxy.serve() as url:
            async with Kube(configured(tmp_path, authority, {"server": server.url, "proxy-url": url})) as kube:
                await kube.get(PATH)
            assert proxy.heads[0].startswith(f"GET {server.url}{PATH} ")

    play(scene)


def test_a_proxy_that_is_not_there_is_unreachable(tmp_path: Path, authority: Pair) -> None:
    async def scene() -> None:
        async with ApiServer() as server:
            cluster = {"server": server.url, "proxy-url": "http://127.0.0.1:9"}
            async with Kube(configured(tmp_path, authority, cluster)) as kube:
                with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
                    await kube.get(PATH)
            assert server.calls == []

    play(scene)


def test_username_and_password_are_sent_as_basic_authentication(tmp_path: Path, authority: Pair) -> None:
    async def scene() -> None:
        async with ApiServer(serving(authority, "127.0.0.1")) as server:
            user = {"username": "me", "password": "pä:ss"}
            async with Kube(configured(tmp_path, authority, {"server": server.url}, user)) as kube:
                await kube.get(PATH)
                await kube.create("/api/v1/pods", {})
        expected = "Basic " + base64.b64encode("me:pä:ss".encode()).decode()
        assert [call.headers["Authorization"] for call in server.calls] == [expected, expected]

    play(scene)


def test_impersonation_is_sent_with_every_request_beside_the_login(tmp_path: Path, authority: Pair) -> None:
    async def scene() -> None:
        async with ApiServer(serving(authority, "127.0.0.1")) as server:
            user = {
                "token": "t",
                "as": "jane",
                "as-uid": "07",
                "as-groups": ["dev", "ops team"],
                "as-user-extra": {"scopes": ["view", "edit"], "acme.com/50%": ["x"]},
            }
            async with Kube(configured(tmp_path, authority, {"server": server.url}, user)) as kube:
                await kube.get(PATH)
                await kube.patch("/api/v1/nodes/n", {})
        for call in server.calls:
            assert call.headers["Authorization"] == "Bearer t"
            assert call.headers["Impersonate-User"] == "jane"
            assert call.headers["Impersonate-Uid"] == "07"
            assert call.headers.getall("Impersonate-Group") == ["dev", "ops team"]
            assert call.headers.getall("Impersonate-Extra-scopes") == ["view", "edit"]
            assert call.headers.getall("Impersonate-Extra-acme.com%2F50%25") == ["x"]

    play(scene)
