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
def test_this_machine_is_welcome_by_any_of_its_own_names(host: str) -> None:
    assert asked(OPEN, host=host) is Verdict.ALLOWED


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:9478", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1"]
)
def test_a_name_that_somebody_else_owns_is_refused(host: str) -> None:
    """A page at that name could otherwise read the dashboard through the browser of whoever visits it."""
    assert asked(OPEN, host=host) is Verdict.WRONG_HOST


def test_with_a_token_any_name_will_do_but_not_without_it() -> None:
    assert asked(GUARDED, host="gpu.lab", authorization=f"Bearer {TOKEN}") is Verdict.ALLOWED
    assert asked(GUARDED, host="localhost") is Verdict.UNAUTHORIZED


@pytest.mark.parametrize("said", ["", "Bearer", "Bearer 0123456789abcdeX", f"Basic {TOKEN}", TOKEN, "Bearer é"])
def test_another_token_is_none(said: str) -> None:
    assert asked(GUARDED, authorization=said) is Verdict.UNAUTHORIZED


def test_the_cookie_is_as_good_and_is_named_by_its_port() -> None:
    assert asked(GUARDED, cookies={"aliquot-token-9478": GUARDED.badge}) is Verdict.ALLOWED
    assert asked(GUARDED, cookies={"aliquot-token-9479": GUARDED.badge}) is Verdict.UNAUTHORIZED


def test_the_cookie_does_not_give_the_token_away_and_opens_no_other_dashboard() -> None:
    assert TOKEN not in GUARDED.badge
    assert asked(GUARDED, authorization=f"Bearer {GUARDED.badge}") is Verdict.UNAUTHORIZED
    other = Access("0.0.0.0", 9479, TOKEN)
    assert asked(other, cookies={other.cookie: GUARDED.badge}) is Verdict.UNAUTHORIZED


def test_a_token_in_the_address_enters_by_the_front_page_only() -> None:
    assert asked(GUARDED, query={"token": TOKEN}) is Verdict.SET_COOKIE
    assert asked(GUARDED, query={"token": TOKEN}, path="/api/v1/state") is Verdict.UNAUTHORIZED
    assert asked(GUARDED, query={"token": "wrong"}) is Verdict.UNAUTHORIZED


@pytest.mark.parametrize(
    ("address", "url"),
    [("127.0.0.1", "http://127.0.0.1:9478/"), ("::1", "http://[::1]:9478/"), ("0.0.0.0", "http://127.0.0.1:9478/")],
)
def test_the_address_is_told_as_a_browser_takes_it(address: str, url: str) -> None:
    assert Access(address, 9478).url == url


def test_an_address_of_the_network_is_not_loopback() -> None:
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.2", "gpu.lab", ""]))
