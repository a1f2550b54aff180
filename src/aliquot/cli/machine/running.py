"""What `aliquot up -d` says of a daemon that runs already: whether it has the options that are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import UNSET

from aliquot.cli.amounts import AmountError, parse_cards
from aliquot.cli.errors import InputError
from aliquot.cli.options.dashboard import LOOPBACK, split_address
from aliquot.cli.options.enforcement import GRACE
from aliquot.model.status.machine import DaemonStatus, Status

_USUAL = {
    "--listen": f"{LOOPBACK}:9478",
    "--log-limit": "64MiB",
    "--keep-usage": "30",
    "--metrics-names": "aliquot",
    "--control": "auto",
}


def flags_of(words: Iterable[str]) -> dict[str, str]:
    """Each flag with its value; `up_words` gives every flag one."""
    pairs = iter(words)
    return dict(zip(pairs, pairs, strict=True))


def differences(asked: Mapping[str, str], status: Status) -> Iterator[str]:
    """Which of the options that are asked for the daemon does not have, and what it has instead. Policy, delay and the
    like are as they are now: `aliquot policy` may have changed them since its start."""
    running = _running(status)
    for flag, value in asked.items():
        has = running.get(flag)
        if has is None and flag in _USUAL:
            yield f"{flag} {value} (it is of an older release and does not say what it has)"
        elif has is None or _plain(flag, value) != _plain(flag, has):
            yield f"{flag} {value} (it has {'none' if has is None else has})"


def dashboard_words(daemon: DaemonStatus) -> str:
    """Where the dashboard is, or why there is none."""
    if daemon.dashboard:
        return f"dashboard on {daemon.dashboard}"
    asked = None if daemon.options is UNSET else daemon.options.get("--listen")
    if asked is not None and _plain("--listen", asked) == 0:
        return "no dashboard"
    why = "the default port is in use" if asked is None else f"daemon.log says why {asked}, as set last, is not used"
    return f"no dashboard: {why}; choose another with --listen"


def _running(status: Status) -> dict[str, str]:
    """Every option that it has."""
    daemon, rules = status.daemon, status.rules
    delay, kill_after = rules.release_delay_seconds, rules.kill_after_seconds
    found = {
        **({} if daemon.options is UNSET else _USUAL | daemon.options),
        "--policy": rules.policy.value,
        "--release-delay": "auto" if delay is None else _ms(delay),
        "--enforce": "report" if kill_after is None else "kill",
        "--enforce-grace": _ms(GRACE if kill_after is None else kill_after),
    }
    if daemon.dashboard is None:  # also where its port was in use
        found["--listen"] = "0"
    found["--host-pool"] = f"{mib}MiB" if status.pool and (mib := status.pool.bytes >> 20) else "0"
    found.pop("--simulate", None)  # as it was given; what follows is as it is
    if daemon.simulated:
        found["--simulate"] = daemon.simulated
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:g}ms"


def _plain(flag: str, value: str) -> object:
    """Equal for words that mean the same."""
    try:
        if flag == "--simulate":
            return parse_cards(value)
        if flag == "--listen":
            address, port = split_address(value, flag)
            return (address, port) if port else 0
    except (AmountError, InputError):
        pass
    return value
