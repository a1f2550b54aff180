"""When to renew the webhook's CA and certificate, and in which order. A function of the keys and the time; no IO.

The decision depends only on the keys in the Secret, so every replica comes to the same conclusion and a restart in the
middle loses nothing:

    certificate   renewed after two thirds of its lifetime, or when it lacks a name
    authority     renewed after two thirds of its lifetime. The new one is at first only trusted, beside the old one; it
                  signs the next certificate once the API server has trusted it for an hour. So the bundle always
                  contains the authority of whatever certificate a replica presents
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
    """In seconds."""

    authority: float = 3650 * _DAY
    certificate: float = 365 * _DAY
    known: float = 3600.0  # how long an authority is trusted before it signs


@dataclass(frozen=True, slots=True)
class Keys:
    """What the replicas share. `trusted` is the bundle: the authority's certificate, then those of older ones."""

    authority: Pair | None  # None: a certificate that another program issues and renews
    trusted: bytes
    serving: Pair


def renewed(keys: Keys | None, names: Iterable[str], now: float, lifetimes: Lifetimes) -> Keys:
    """The keys to use from now on: the same object if nothing is due."""
    wanted = frozenset(names)
    if keys is None:
        return _fresh(wanted, now, lifetimes)
    if keys.authority is None:
        return keys
    try:
        return _renewed(keys, keys.authority, wanted, now, lifetimes)
    except CertificateError:  # damaged: keep what is still trusted, for replicas that have not read the new keys yet
        return _fresh(wanted, now, lifetimes, _unexpired(keys.trusted, now))


def _fresh(names: frozenset[str], now: float, lifetimes: Lifetimes, older: bytes = b"") -> Keys:
    authority = make_authority(_NAME, now, lifetimes.authority)
    serving = issue(authority, names, now, lifetimes.certificate)
    return Keys(authority, authority.certificate + older, serving)


def _renewed(keys: Keys, authority: Pair, wanted: frozenset[str], now: float, lifetimes: Lifetimes) -> Keys:
    signer = read_facts(authority.certificate)
    if signer.ends <= now or not belong_together(authority):
        return _fresh(wanted, now, lifetimes, _unexpired(keys.trusted, now))
    shown = read_facts(keys.serving.certificate)
    usable = (
        shown.ends > now
        and wanted <= shown.names
        and belong_together(keys.serving)
        and any(signed_by(keys.serving.certificate, trusted) for trusted in split(keys.trusted))
    )
    if usable and now >= signer.ends - lifetimes.authority / 3:
        newer = make_authority(_NAME, now, lifetimes.authority)
        return replace(keys, authority=newer, trusted=newer.certificate + _unexpired(keys.trusted, now))
    due = now >= shown.ends - lifetimes.certificate / 3
    known = now >= signer.made + lifetimes.known or signed_by(keys.serving.certificate, authority.certificate)
    if usable and not (due and known):
        return keys
    # Only add names: replicas that are reached under different names must not remove each other's.
    return replace(keys, serving=issue(authority, wanted | shown.names, now, lifetimes.certificate))


def _unexpired(bundle: bytes, now: float) -> bytes:
    kept = []
    for certificate in split(bundle):
        try:
            if read_facts(certificate).ends > now:
                kept.append(certificate)
        except CertificateError:
            continue
    return b"".join(kept)
