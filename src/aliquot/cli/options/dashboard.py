"""Where a dashboard listens, as people type it: [ADDRESS:]PORT, and the file with its token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aliquot.cli.errors import InputError

if TYPE_CHECKING:
    from aliquot.services.dashboard.access import Listen

LOOPBACK = "127.0.0.1"


def parse_listen(text: str | None, token_file: Path | None, *, option: str) -> Listen | None:
    """None: the option was not given. Raises InputError."""
    from aliquot.services.dashboard.access import Listen, is_loopback

    token_option = "--token-file" if option == "--listen" else f"{option}-token-file"
    if text is None:
        if token_file is not None:
            raise InputError(f"{token_option} is for a dashboard that others reach: give it an address with {option}")
        return None
    address, port = split_address(text, option)
    token = None if token_file is None else _token(token_file, token_option)
    if token_file is not None and option == "--listen" and token_file.stat().st_mode & 0o004:  # a Secret's always are
        click.echo(f"aliquot: {token_option}: every local user can read {token_file}: run chmod 600", err=True)
    if port and token is None and not is_loopback(address):
        raise InputError(
            f"{option}: {address} can be reached from other machines: name a file with a token ({token_option}), as "
            "`(umask 077; openssl rand -hex 24 > FILE)` makes one; or listen on 127.0.0.1"
        )
    return Listen(address, port, token, token_file=None if token_file is None else str(token_file.absolute()))


def split_address(text: str, option: str) -> tuple[str, int]:
    """Address and port. Raises InputError."""
    address, colon, port = text.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        colon = "?"  # an IPv6 address without brackets: its end is ambiguous
    right = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536
    if not right or colon == "?" or (colon and not address):
        raise InputError(f'{option}: "{text}" is not allowed: PORT or ADDRESS:PORT, as 9478 or [::1]:9478; 0: none')
    return address or LOOPBACK, int(port)


def _token(path: Path, option: str) -> str:
    from aliquot.services.dashboard.access import ALLOWED_TOKENS, TOKENS

    try:
        token = path.read_text().strip()
    except OSError as error:
        raise InputError(f"{option}: {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        token = ""
    if not TOKENS.fullmatch(token):
        raise InputError(f"{option}: {path}: its content is not allowed: {ALLOWED_TOKENS}")
    return token
