"""The Chinese pages have every code block, command, option, name, table row and link of the English ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
CHINESE = DOCS / "zh-CN"
PAGES = ("dialects", "elastic-memory", "faq", "groups", "install", "migration")
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def _read(page: str) -> tuple[str, str]:
    return (DOCS / f"{page}.md").read_text(), (CHINESE / f"{page}.md").read_text()


def _blocks(text: str) -> list[list[str]]:
    """The fenced blocks, without comments, which are translated."""
    return [
        [re.sub(r"(?<=\S)\s{2,}#.*|(?<=\S) +# .*", "", line).rstrip() for line in block.splitlines()]
        for block in _FENCED.findall(text)
    ]


def _code(text: str) -> set[str]:
    """What stands between backticks outside of the blocks; lines may be broken within."""
    return {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", _FENCED.sub("", text))}


def _links(text: str, folder: Path) -> list[str]:
    """Where the links lead, by page: anchors are translated, and so are pages that exist in Chinese."""
    found = []
    for link in re.findall(r"\]\(([^)#\s]*)[^)]*\)", text):
        if link and not link.startswith("https://"):
            target = (folder / link).resolve().relative_to(DOCS.parent.resolve())
            link = str(target).replace("docs/zh-CN/", "docs/").replace("README.zh-CN.md", "README.md")
        found.append(link)
    return found


def test_every_chinese_page_is_compared() -> None:
    assert sorted(path.stem for path in CHINESE.glob("*.md")) == sorted(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_chinese_page_has_every_code_block(page: str) -> None:
    english, chinese = _read(page)
    assert _blocks(chinese) == _blocks(english)


@pytest.mark.parametrize("page", PAGES)
def test_chinese_page_has_every_command_option_and_name(page: str) -> None:
    english, chinese = _read(page)
    assert _code(english) - _code(chinese) == set(), f"write these into docs/zh-CN/{page}.md too"
    assert _code(chinese) - _code(english) == set(), f"docs/{page}.md no longer has these"


@pytest.mark.parametrize("page", PAGES)
def test_chinese_page_has_every_heading_row_and_link(page: str) -> None:
    english, chinese = (_FENCED.sub("", text) for text in _read(page))
    for start in ("## ", "### ", "|", "- "):
        counts = [sum(line.startswith(start) for line in text.splitlines()) for text in (english, chinese)]
        assert counts[0] == counts[1], f"lines that start with {start}"
    navigation = [f"docs/{other}.md" for other in PAGES if other != page]  # the line below the Chinese title
    assert sorted(_links(chinese, CHINESE)) == sorted(_links(english, DOCS) + navigation)


@pytest.mark.parametrize("page", PAGES)
def test_pages_link_to_each_other(page: str) -> None:
    english, chinese = _read(page)
    assert f"[中文](zh-CN/{page}.md)" in english
    assert f"[English](../{page}.md)" in chinese
