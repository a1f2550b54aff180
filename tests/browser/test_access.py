"""Who may look: every user of this machine, and from elsewhere a browser with the token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from browser.scenes import Shown, shown
from browser.visits import visiting

TOKEN = "correct-horse-battery-staple-0123456789"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Reached from everywhere, and so only with the token."""
    file: Path = tmp_path_factory.mktemp("token") / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    with shown("1x8GiB", address="0.0.0.0", more=("--token-file", str(file))) as machine:
        yield machine


@pytest.mark.parametrize("path", ["/", "/api/v1/state", "/api/v1/events", "/metrics"])
def test_page_without_token_shows_instructions_only(guarded: Shown, path: str) -> None:
    status, said = guarded.answer(path)
    assert status == 401
    assert "?token=" in said


def test_page_refuses_a_wrong_token(guarded: Shown) -> None:
    assert guarded.answer(f"/?token={TOKEN[:-1]}")[0] == 401


def test_token_link_opens_the_page_and_cleans_the_address(browser: Browser, guarded: Shown) -> None:
    with visiting(browser, f"{guarded.url}?token={TOKEN}") as visit:
        expect(visit.page.get_by_role("status").first).to_contain_text("live")
        assert TOKEN not in visit.page.url
        (cookie,) = visit.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert TOKEN not in visit.page.evaluate("document.cookie")
        visit.page.goto(guarded.url)
        expect(visit.page.get_by_role("status").first).to_contain_text("live")


def test_page_refuses_foreign_host_names(machine: Shown) -> None:
    """A foreign page that resolves its own name to 127.0.0.1 would read all of it."""
    assert machine.answer("/api/v1/state", host="localhost")[0] == 200
    assert machine.answer("/api/v1/state", host="evil.example")[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_page_answers_get_only(machine: Shown, method: str) -> None:
    assert machine.answer("/api/v1/state", method=method)[0] == 405
