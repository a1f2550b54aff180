"""Who may see a dashboard: on loopback every user of this machine, elsewhere holders of the token.

A page of another site can make a browser ask a server on loopback under a name that the site owns (DNS rebinding). The
Host header is that name then, and the request is refused. With a token, browsers send its cookie to this site only.
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
_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^:@\[\]/\s]+))(:[0-9]*)?")
_COOKIE = "aliquot-token-{port}"  # cookies know no ports: two dashboards on one machine must not share one


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a dashboard should listen. Port 0: there is none."""

    address: str
    port: int
    token: str | None = None
    usual: bool = False  # nobody asks for it now: where another program has the port, there is no dashboard
    token_file: str | None = None  # where people find the token


NO_DASHBOARD = Listen("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Access:
    """How a dashboard is reached. No token: only by this machine's own names."""

    address: str
    port: int
    token: str | None = None

    @property
    def url(self) -> str:
        """Its address on this machine."""
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
        """The value of the cookie. It opens this dashboard and nothing else: browsers keep cookies in files."""
        assert self.token is not None
        return hmac.new(self.token.encode(), self.cookie.encode(), hashlib.sha256).hexdigest()


class Verdict(StrEnum):
    """How a request is answered."""

    ALLOWED = "allowed"
    SET_COOKIE = "set-cookie"  # the token is in the address: redirect to the address without it, with a cookie
    WRONG_HOST = "wrong-host"  # under a name that is not this machine's
    UNAUTHORIZED = "unauthorized"  # without the token, or with another


def judge(
    access: Access,
    *,
    path: str,
    host: str,
    query: Mapping[str, str],
    authorization: str,
    cookies: Mapping[str, str],
) -> Verdict:
    """How to answer the request."""
    if access.token is None:
        return Verdict.ALLOWED if is_loopback(_name_of(host)) else Verdict.WRONG_HOST
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer" and _same(credentials.strip(), access.token):
        return Verdict.ALLOWED
    if _same(cookies.get(access.cookie, ""), access.badge):
        return Verdict.ALLOWED
    if path == "/" and _same(query.get("token", ""), access.token):
        return Verdict.SET_COOKIE
    return Verdict.UNAUTHORIZED


def is_loopback(name: str) -> bool:
    """Whether this name or address means the machine itself."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """A Host header without its port; empty if there is more in it than a name and a port."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["address"] or found["name"]).rstrip(".").lower()


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
