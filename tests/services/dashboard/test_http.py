"""The dashboard over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from aliquot.services.dashboard import http
from aliquot.services.dashboard.access import Access
from aliquot.services.dashboard.assets import read_assets
from aliquot.services.dashboard.http import DashboardHttp
from aliquot.services.dashboard.hub import Hub
from kit.fakeview import FakeView

TOKEN = "0123456789abcdef"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A front end of two files."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Aliquot</title>" + " " * 600)
    (tmp_path / "assets" / "index-8f3a.js").write_text("let answer = 42;\n" * 100)
    monkeypatch.setattr(http, "read_assets", lambda: read_assets(tmp_path))
    return tmp_path


def with_client(talk: Callable[[TestClient[Any, Any], Hub], Awaitable[T]], token: str | None = None) -> T:
    async def run() -> T:
        hub = Hub(FakeView(), lambda: 1000.0)
        app = DashboardHttp(hub, Access("127.0.0.1", 9478, token), clock=lambda: 1000.0).app()
        async with TestClient(TestServer(app)) as client:
            return await talk(client, hub)

    return asyncio.run(run())


def got(path: str, *, token: str | None = None, **more: Any) -> tuple[ClientResponse, bytes]:
    async def talk(client: TestClient[Any, Any], _: Hub) -> tuple[ClientResponse, bytes]:
        async with client.get(path, allow_redirects=False, auto_decompress=False, **more) as answer:
            return answer, await answer.read()

    return with_client(talk, token)


def json_of(path: str) -> Any:
    answer, body = got(path, headers={"Accept-Encoding": "identity"})
    assert (answer.status, answer.content_type) == (200, "application/json")
    return json.loads(body)


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_the_state_has_the_history_in_it() -> None:
    state = json_of("/api/v1/state")
    assert state["kind"] == "machine"
    assert state["history"]["step"] == 1


def test_what_is_large_is_packed_for_those_who_take_it() -> None:
    answer, body = got("/api/v1/state", headers={"Accept-Encoding": "gzip, br"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["kind"] == "machine"


def test_nodes_and_pods_are_asked_for_by_name() -> None:
    assert json_of("/api/v1/nodes/n1")["name"] == "n1"
    assert json_of("/api/v1/pods/ns%2Fp")["key"] == "ns/p"
    assert json_of("/api/v1/pods/ns/p")["key"] == "ns/p"


def test_who_is_not_there_is_404_and_named() -> None:
    answer, body = got("/api/v1/nodes/n2")
    assert (answer.status, json.loads(body)) == (404, {"error": "no node is called n2"})
    assert got("/api/v1/pods/gone")[0].status == 404
    assert got("/etc/passwd")[0].status == 404
    assert got("/assets/../index.html")[0].status in (200, 404)


def test_a_search_says_what_is_looked_for_and_how_many() -> None:
    assert json_of("/api/v1/search?q=%20job&limit=7") == {"nodes": ["job", "7"], "pods": []}
    assert json_of("/api/v1/search") == {"nodes": ["", "50"], "pods": []}


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/search?limit=0",
        "/api/v1/search?limit=x",
        "/api/v1/search?limit=0000000019999",
        "/api/v1/search?limit=000000001" + "9" * 4400,
        "/api/v1/history?range=7d",
    ],
)
def test_what_is_not_allowed_is_told_with_what_is(path: str) -> None:
    answer, body = got(path)
    assert answer.status == 400
    assert "is not allowed: " in json.loads(body)["error"]


def test_both_ranges_of_the_history_are_there() -> None:
    assert json_of("/api/v1/history")["step"] == 1
    assert json_of("/api/v1/history?range=24h")["step"] == 60


def test_metrics_are_on_the_same_port() -> None:
    answer, body = got("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert body == b"aliquot_build_info 1\n"


def test_events_begin_with_the_state_and_go_on_with_ticks() -> None:
    async def talk(client: TestClient[Any, Any], hub: Hub) -> list[bytes]:
        async with client.get("/api/v1/events") as answer:
            assert answer.content_type == "text/event-stream"
            first = await answer.content.readuntil(b"\n\n")
            hub.beat(1001.0)
            second = await answer.content.readuntil(b"\n\n")
        while hub.listeners:  # it is gone, and that is noticed
            hub.beat(1002.0)
            await asyncio.sleep(0.01)
        return [first, second]

    first, second = with_client(talk)
    assert b"event: state\n" in first
    assert second.startswith(b"event: tick\n")


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_is_asked_for_anew_and_its_files_are_kept_for_ever() -> None:
    page, _ = got("/")
    assert (page.status, page.headers["Cache-Control"]) == (200, "no-cache")
    file, _ = got("/assets/index-8f3a.js")
    assert file.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert file.headers["Content-Type"] == "text/javascript; charset=utf-8"


def test_a_page_that_the_browser_has_is_not_sent_again() -> None:
    tag = got("/")[0].headers["ETag"]
    answer, body = got("/", headers={"If-None-Match": tag})
    assert (answer.status, body) == (304, b"")


def test_nothing_of_another_host_is_loaded_and_nobody_frames_it() -> None:
    for path in ("/", "/api/v1/state", "/nothing"):
        policy = got(path)[0].headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy


def test_where_it_was_never_built_the_page_says_so(built: Path) -> None:
    for file in ("assets/index-8f3a.js", "index.html"):
        (built / file).unlink()
    answer, body = got("/")
    assert answer.status == 503
    assert b"make web" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/v1/state", "/metrics"])
def test_nothing_can_be_changed(method: str, path: str) -> None:
    async def talk(client: TestClient[Any, Any], _: Hub) -> int:
        async with client.request(method, path) as answer:
            return answer.status

    assert with_client(talk) == 405


# --- who may look ----------------------------------------------------------------------------------------------------


def test_a_foreign_name_is_refused_and_told_the_right_one() -> None:
    answer, body = got("/api/v1/state", headers={"Host": "evil.example"})
    assert answer.status == 403
    assert b"http://127.0.0.1:9478/" in body


def test_without_the_token_nothing_is_told_but_how_to_bring_it() -> None:
    for path in ("/", "/api/v1/state", "/api/v1/events", "/metrics", "/assets/index-8f3a.js"):
        answer, body = got(path, token=TOKEN)
        assert answer.status == 401
        assert b"Authorization: Bearer TOKEN" in body
        assert TOKEN.encode() not in body


def test_a_token_in_the_address_becomes_a_cookie() -> None:
    answer, _ = got(f"/?token={TOKEN}", token=TOKEN)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    pair = cookie.partition(";")[0]
    assert got("/api/v1/state", token=TOKEN, headers={"Cookie": pair})[0].status == 200


def test_a_scraper_brings_the_token_in_a_header() -> None:
    assert got("/metrics", token=TOKEN, headers={"Authorization": f"Bearer {TOKEN}"})[0].status == 200
