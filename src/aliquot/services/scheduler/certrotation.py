"""When the webhook's authority and its certificate are renewed, and in which order. Given the time; no IO.

All is told by the keys themselves, as they stand in the Secret, so that every replica comes to the same conclusion and
a restart in the middle loses nothing:

    certificate   renewed after two thirds of its life, or when it lacks a name
    authority     renewed after two thirds of its life. The new one is only trusted at first, beside the old one; it
                  signs the next certificate, when the API server has known it for an hour. Thus whatever certificate
                  a replica shows, its authority is in the bundle
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from aliquot.adapters.kubernetes.certificates import (
    CertificateError,
    Pair,
    belong_together,
    issue,
    make_authority,
    read_facts,
    signed_by,
    split,
)

_NAME = "aliquot webhook"
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long things last, in seconds."""

    authority: float = 3650 * _DAY
    certificate: float = 365 * _DAY
    known: float = 3600.0  # how long an authority is trusted before it signs


@dataclass(frozen=True, slots=True)
class Keys:
    """All that the replicas share. `trusted` is the bundle: the authority's certificate first, then its elders'."""

    authority: Pair | None  # None: somebody else's certificate, which somebody else renews
    trusted: bytes
    serving: Pair


def renewed(keys: Keys | None, names: Iterable[str], now: float, lifetimes: Lifetimes) -> Keys:
    """The keys to use from now on: the same object where nothing is due."""
    wanted = frozenset(names)
    if keys is None:
        return _fresh(wanted, now, lifetimes)
    if keys.authority is None:
        return keys
    try:
        return _renewed(keys, keys.authority, wanted, now, lifetimes)
    except CertificateError:  # damaged: what is still trusted stays so, for replicas that have not seen it yet
        return _fresh(wanted, now, lifetimes, _unexpired(keys.trusted, now))


def _fresh(names: frozenset[str], now: float, lifetimes: Lifetimes, elders: bytes = b"") -> Keys:
    authority = make_authority(_NAME, now, lifetimes.authority)
    serving = issue(authority, names, now, lifetimes.certificate)
    return Keys(authority, authority.certificate + elders, serving)


def _renewed(keys: Keys, authority: Pair, wanted: frozenset[str], now: float, lifetimes: Lifetimes) -> Keys:
    signer = read_facts(authority.certificate)
    if signer.ends <= now or not belong_together(authority):
        return _fresh(wanted, now, lifetimes, _unexpired(keys.trusted, now))
    shown = read_facts(keys.serving.certificate)
    usable = (
        shown.ends > now
        and wanted <= shown.names
        and belong_together(keys.serving)
        and any(signed_by(keys.serving.certificate, each) for each in split(keys.trusted))
    )
    if usable and now >= signer.ends - lifetimes.authority / 3:
        younger = make_authority(_NAME, now, lifetimes.authority)
        return replace(keys, authority=younger, trusted=younger.certificate + _unexpired(keys.trusted, now))
    due = now >= shown.ends - lifetimes.certificate / 3
    known = now >= signer.made + lifetimes.known or signed_by(keys.serving.certificate, authority.certificate)
    if usable and not (due and known):
        return keys
    # Names are only added: replicas that are asked under different ones must not take them from each other.
    return replace(keys, serving=issue(authority, wanted | shown.names, now, lifetimes.certificate))


def _unexpired(bundle: bytes, now: float) -> bytes:
    kept = []
    for each in split(bundle):
        try:
            if read_facts(each).ends > now:
                kept.append(each)
        except CertificateError:
            continue
    return b"".join(kept)
