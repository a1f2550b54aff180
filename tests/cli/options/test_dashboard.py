"""Where a dashboard listens, as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.cli.errors import InputError
from aliquot.cli.options.dashboard import parse_listen
from aliquot.services.dashboard.access import Listen


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("9478", Listen("127.0.0.1", 9478)),
        ("0", Listen("127.0.0.1", 0)),
        ("127.0.0.2:80", Listen("127.0.0.2", 80)),
        ("localhost:80", Listen("localhost", 80)),
        ("[::1]:9478", Listen("::1", 9478)),
    ],
)
def test_listen_defaults_to_loopback(text: str, listen: Listen) -> None:
    assert parse_listen(text, None, option="--listen") == listen


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "1.2.3.4:", ":80", "::1:80", "1.2.3.4:80x", "٣"])
def test_listen_rejects_bad_addresses(text: str) -> None:
    with pytest.raises(InputError, match=r"--listen: .* is not allowed: PORT or ADDRESS:PORT"):
        parse_listen(text, None, option="--listen")


@pytest.mark.parametrize("text", ["0.0.0.0:9478", "[::]:9478", "192.168.1.2:9478", "gpu.lab:9478"])
def test_listen_beyond_loopback_requires_a_token(text: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"can be reached from other machines: name a file with a token \(--token-file\)"
    ):
        parse_listen(text, None, option="--listen")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    listen = parse_listen(text, token, option="--listen")
    assert listen is not None
    assert listen.token == "0123456789abcdef"


@pytest.mark.parametrize("content", [b"", b"short", b"with spaces in between", b"\xff" * 20, b"a" * 300])
def test_token_file_with_bad_token_is_refused(content: bytes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    with pytest.raises(InputError, match="16 to 256 letters, digits"):
        parse_listen("9478", token, option="--listen")


def test_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--dashboard-token-file: .*/none: No such file"):
        parse_listen("9478", tmp_path / "none", option="--dashboard")


def test_token_file_without_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give it an address with --listen"):
        parse_listen(None, tmp_path / "token", option="--listen")


def test_readable_token_file_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    for mode, said in ((0o600, ""), (0o640, ""), (0o644, f"every local user can read {token}: run chmod 600")):
        token.chmod(mode)
        parse_listen("9478", token, option="--listen")
        printed = capsys.readouterr().err
        assert said in printed
        assert bool(printed) == bool(said)
