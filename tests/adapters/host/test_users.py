"""Which account has a number, and which numbers are one user's."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host import users
from aliquot.adapters.host.users import account_of, node_account
from kit.running.scarcefiles import scarce_files


def test_account_of_the_node_is_known_by_its_number() -> None:
    assert node_account(0) == "root"
    free = next(uid for uid in range(70000, 80000) if uid not in {entry.pw_uid for entry in pwd.getpwall()})
    assert node_account(free) is None


@pytest.fixture
def lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What stands in for /etc/subuid."""
    monkeypatch.setattr(users, "_LENT", tmp_path / "subuid")
    account_of.cache_clear()
    yield tmp_path / "subuid"
    account_of.cache_clear()


def test_numbers_that_are_lent_to_a_user_are_that_user(lent: Path) -> None:
    lent.write_text("70001:200000:65536\n70002:265536:65536\n")
    assert [account_of(uid) for uid in (70001, 199_999, 200_000, 265_535, 265_536, 331_071, 331_072)] == [
        70001, 199_999, 70001, 70001, 70002, 70002, 331_072,
    ]  # fmt: skip


def test_numbers_are_lent_by_name_too(lent: Path) -> None:
    other = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
    lent.write_text(f"{other.pw_name}:200000:10\nnobody-of-this-name:300000:10\n")
    assert account_of(200_009) == other.pw_uid
    assert account_of(300_003) == account_of(300_004) < 0, "one user, whoever it is, and no account's"


@pytest.mark.parametrize("owner", ["root", "0", str(os.geteuid())])
def test_numbers_that_are_lent_to_root_do_not_become_root(lent: Path, owner: str) -> None:
    lent.write_text(f"{owner}:200000:65536\n")
    assert account_of(200_000) == account_of(200_001) < 0


def test_number_with_an_account_of_its_own_is_that_account(lent: Path) -> None:
    """As where a directory's users have numbers that some local user may use in containers."""
    other = next(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
    lent.write_text(f"70001:0:65536\nroot:{other}:1\n")
    assert [account_of(uid) for uid in (0, os.geteuid(), other)] == [0, os.geteuid(), other]


def test_root_and_the_daemons_user_keep_their_numbers(lent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 61_234)  # no account has it
    lent.write_text("root:0:65536\n")
    assert [account_of(uid) for uid in (0, 61_234)] == [0, 61_234]
    assert account_of(61_235) < 0, "no privileges by a line of root's"


def test_file_is_read_again_when_it_was_changed(lent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lent.write_text("70001:200000:65536\n")
    assert account_of(200_000) == 70001
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", None)  # it is not read again
        assert account_of(200_001) == 70001
    lent.write_text("70001:200000:65536\n70002:300000:10\n")
    assert account_of(300_001) == 70002


def test_numbers_stay_lent_while_no_file_is_left_to_read_that(lent: Path) -> None:
    """What is said of a number is remembered for ever: each would be a user of its own."""
    lent.write_text("70001:200000:65536\n")
    users.read_lent()
    lent.write_text("70001:200000:65536\n70002:300000:10\n")
    with scarce_files(0):
        assert account_of(200_000) == 70001
    assert account_of(300_001) == 70002


NONSENSE = ["", "\n", "a:b:c\n", "70001:200000\n", "70001:-5:10\n", "70001:²:10\n", "70001:99999999999:1\n", "\0:1:1\n"]


@pytest.mark.parametrize("text", NONSENSE)
def test_lines_that_make_no_sense_lend_nothing(lent: Path, text: str) -> None:
    lent.write_text(text)
    assert account_of(200_001) == 200_001
    lent.write_bytes(b"\xff:1000:1\n" + text.encode() + b"70001:300000:10\n")
    assert account_of(300_001) == 70001


def test_without_the_file_each_number_is_a_user(lent: Path) -> None:
    assert account_of(200_001) == 200_001
    lent.mkdir()
    assert account_of(200_002) == 200_002
