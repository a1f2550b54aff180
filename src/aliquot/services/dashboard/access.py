"""Who may look at a dashboard. On loopback anybody of this machine; elsewhere whoever has the token.

A page of another site can have a browser ask a server on loopback under a name that the site owns (DNS rebinding): then
the Host header is that name, and the answer is no. Where there is a token, its cookie is no other site's to send.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

TOKENS = re.compile(r"[A-Za-z0-9._~-]{16,256}")
ALLOWED_TOKENS = "16 to 256 letters, digits and . _ ~ -, as `openssl rand -hex 24` makes them"
_COOKIE = "aliquot-token-{port}"  # cookies know no ports: two dashboards on one machine must not share one


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a dashboard is wished for. Port 0: nowhere."""

    address: str
    port: int
    token: str | None = None
    usual: bool = False  # nobody asked for just this: where it is taken, there is none
    token_file: str | None = None  # where the token was read: for people to find it


NOWHERE = Listen("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Access:
    """How a dashboard is reached. No token: only by this machine's own names."""

    address: str
    port: int
    token: str | None = None

    @property
    def url(self) -> str:
        """Where to look, from this machine."""
        address = "127.0.0.1" if self.everywhere else self.address
        return f"http://{f'[{address}]' if ':' in address else address}:{self.port}/"

    @property
    def everywhere(self) -> bool:
        """Whether it listens on all of the machine's addresses."""
        return self.address in ("0.0.0.0", "::", "")  # noqa: S104  # asked, not listened on

    @property
    def cookie(self) -> str:
        """The name of the cookie that stands for the token."""
        return _COOKIE.format(port=self.port)

    @property
    def badge(self) -> str:
        """What is in it: no more than what opens this dashboard, for browsers keep cookies in files."""
        assert self.token is not None
        return hmac.new(self.token.encode(), self.cookie.encode(), hashlib.sha256).hexdigest()


class Verdict(StrEnum):
    """What becomes of a request."""

    WELCOME = "welcome"
    ENTER = "enter"  # it brings the token in the address: a cookie is set instead, and the address cleaned
    FOREIGN = "foreign"  # under a name that is not this machine's
    UNKNOWN = "unknown"  # without the token, or with another


def judge(
    access: Access,
    *,
    path: str,
    host: str,
    query: Mapping[str, str],
    authorization: str,
    cookies: Mapping[str, str],
) -> Verdict:
    """Whether the request is answered."""
    if access.token is None:
        return Verdict.WELCOME if is_loopback(_name_of(host)) else Verdict.FOREIGN
    scheme, _, said = authorization.partition(" ")
    if scheme.lower() == "bearer" and _same(said.strip(), access.token):
        return Verdict.WELCOME
    if _same(cookies.get(access.cookie, ""), access.badge):
        return Verdict.WELCOME
    if path == "/" and _same(query.get("token", ""), access.token):
        return Verdict.ENTER
    return Verdict.UNKNOWN


def is_loopback(name: str) -> bool:
    """Whether this name or address means the machine itself, whoever asks."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


def _same(said: str, token: str) -> bool:
    return hmac.compare_digest(said.encode("utf-8", "replace"), token.encode())
