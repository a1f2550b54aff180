"""Who may look at a dashboard."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.services.dashboard.access import Access, Verdict, is_loopback, judge

TOKEN = "0123456789abcdef"
OPEN = Access("127.0.0.1", 9478)
GUARDED = Access("0.0.0.0", 9478, TOKEN)


def asked(access: Access, **more: Any) -> Verdict:
    request: dict[str, Any] = {"path": "/", "host": "localhost:9478", "query": {}, "authorization": "", "cookies": {}}
    return judge(access, **{**request, **more})


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9478", "127.0.0.1:80", "[::1]:9478", "LOCALHOST.", "a.localhost"]
)
def test_access_allows_loopback_names_without_token(host: str) -> None:
    assert asked(OPEN, host=host) is Verdict.ALLOWED


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:9478", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1"),
        *("[::1].evil.example", "[::1]evil.example:80", "127.0.0.1:80@evil.example", "localhost:evil.example", "[::1"),
    ],
)
def test_access_refuses_foreign_host_names(host: str) -> None:
    """A page at that name could otherwise read the dashboard through the browser of its visitor."""
    assert asked(OPEN, host=host) is Verdict.WRONG_HOST


def test_access_with_token_allows_any_host_name() -> None:
    assert asked(GUARDED, host="gpu.lab", authorization=f"Bearer {TOKEN}") is Verdict.ALLOWED
    assert asked(GUARDED, host="localhost") is Verdict.UNAUTHORIZED


@pytest.mark.parametrize("said", ["", "Bearer", "Bearer 0123456789abcdeX", f"Basic {TOKEN}", TOKEN, "Bearer é"])
def test_access_refuses_a_wrong_token(said: str) -> None:
    assert asked(GUARDED, authorization=said) is Verdict.UNAUTHORIZED


def test_access_allows_the_cookie_of_its_port() -> None:
    assert asked(GUARDED, cookies={"aliquot-token-9478": GUARDED.badge}) is Verdict.ALLOWED
    assert asked(GUARDED, cookies={"aliquot-token-9479": GUARDED.badge}) is Verdict.UNAUTHORIZED


def test_cookie_does_not_reveal_the_token_or_open_other_dashboards() -> None:
    assert TOKEN not in GUARDED.badge
    assert asked(GUARDED, authorization=f"Bearer {GUARDED.badge}") is Verdict.UNAUTHORIZED
    other = Access("0.0.0.0", 9479, TOKEN)
    assert asked(other, cookies={other.cookie: GUARDED.badge}) is Verdict.UNAUTHORIZED


def test_token_in_the_address_works_on_the_front_page_only() -> None:
    assert asked(GUARDED, query={"token": TOKEN}) is Verdict.SET_COOKIE
    assert asked(GUARDED, query={"token": TOKEN}, path="/api/v1/state") is Verdict.UNAUTHORIZED
    assert asked(GUARDED, query={"token": "wrong"}) is Verdict.UNAUTHORIZED


@pytest.mark.parametrize(
    ("address", "url"),
    [("127.0.0.1", "http://127.0.0.1:9478/"), ("::1", "http://[::1]:9478/"), ("0.0.0.0", "http://127.0.0.1:9478/")],
)
def test_access_url_is_what_a_browser_takes(address: str, url: str) -> None:
    assert Access(address, 9478).url == url


def test_network_address_is_not_loopback() -> None:
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.2", "gpu.lab", ""]))
