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
from kit.machines.fakeview import FakeView

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


def test_state_includes_the_history() -> None:
    state = json_of("/api/v1/state")
    assert state["kind"] == "machine"
    assert state["history"]["step"] == 1


def test_large_answers_are_gzipped_on_request() -> None:
    answer, body = got("/api/v1/state", headers={"Accept-Encoding": "gzip, br"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["kind"] == "machine"


def test_nodes_and_pods_are_served_by_name() -> None:
    assert json_of("/api/v1/nodes/n1")["name"] == "n1"
    assert json_of("/api/v1/pods/ns%2Fp")["key"] == "ns/p"
    assert json_of("/api/v1/pods/ns/p")["key"] == "ns/p"


def test_unknown_names_answer_404() -> None:
    answer, body = got("/api/v1/nodes/n2")
    assert (answer.status, json.loads(body)) == (404, {"error": "no node is called n2"})
    assert got("/api/v1/pods/gone")[0].status == 404
    assert got("/etc/passwd")[0].status == 404
    assert got("/assets/../index.html")[0].status in (200, 404)


def test_search_passes_words_and_limit() -> None:
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
def test_bad_query_names_the_allowed_values(path: str) -> None:
    answer, body = got(path)
    assert answer.status == 400
    assert "is not allowed: " in json.loads(body)["error"]


def test_history_serves_both_ranges() -> None:
    assert json_of("/api/v1/history")["step"] == 1
    assert json_of("/api/v1/history?range=24h")["step"] == 60


def test_metrics_are_served_on_the_dashboard_port() -> None:
    answer, body = got("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert body == b"aliquot_build_info 1\n"


def test_events_begin_with_state_then_ticks() -> None:
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


def test_page_is_revalidated_and_assets_are_immutable() -> None:
    page, _ = got("/")
    assert (page.status, page.headers["Cache-Control"]) == (200, "no-cache")
    file, _ = got("/assets/index-8f3a.js")
    assert file.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert file.headers["Content-Type"] == "text/javascript; charset=utf-8"


def test_unchanged_page_answers_304() -> None:
    tag = got("/")[0].headers["ETag"]
    answer, body = got("/", headers={"If-None-Match": tag})
    assert (answer.status, body) == (304, b"")


def test_csp_forbids_other_hosts_and_frames() -> None:
    for path in ("/", "/api/v1/state", "/nothing"):
        policy = got(path)[0].headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy


def test_missing_build_is_reported(built: Path) -> None:
    for file in ("assets/index-8f3a.js", "index.html"):
        (built / file).unlink()
    answer, body = got("/")
    assert answer.status == 503
    assert b"make web" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/api/v1/state", "/metrics"])
def test_other_methods_than_get_are_refused(method: str, path: str) -> None:
    async def talk(client: TestClient[Any, Any], _: Hub) -> int:
        async with client.request(method, path) as answer:
            return answer.status

    assert with_client(talk) == 405


# --- who may look ----------------------------------------------------------------------------------------------------


def test_wrong_host_is_refused_with_the_right_address() -> None:
    answer, body = got("/api/v1/state", headers={"Host": "evil.example"})
    assert answer.status == 403
    assert b"http://127.0.0.1:9478/" in body


def test_missing_token_answers_401_with_instructions() -> None:
    for path in ("/", "/api/v1/state", "/api/v1/events", "/metrics", "/assets/index-8f3a.js"):
        answer, body = got(path, token=TOKEN)
        assert answer.status == 401
        assert b"Authorization: Bearer TOKEN" in body
        assert TOKEN.encode() not in body


def test_token_in_the_address_becomes_a_cookie() -> None:
    answer, _ = got(f"/?token={TOKEN}", token=TOKEN)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    pair = cookie.partition(";")[0]
    assert got("/api/v1/state", token=TOKEN, headers={"Cookie": pair})[0].status == 200


def test_scraper_sends_the_token_in_a_header() -> None:
    assert got("/metrics", token=TOKEN, headers={"Authorization": f"Bearer {TOKEN}"})[0].status == 200
