"""Parses `aliquot run` requests from the control socket into claims. Trusts nothing in them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from aliquot.dialects import QgpuRules
from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice
from aliquot.model.device import Card
from aliquot.model.node import Offer
from aliquot.model.numbers.bounds import LEAST_LATENCY, LONGEST_PARK, MOST_LATENCY
from aliquot.model.refusal import Invalid
from aliquot.wording import amounts
from aliquot.wording.amounts import count, duration, memory, needed_and_had
from aliquot.wording.runoptions import (
    LATENCY_ALLOWED,
    LATENCY_ONLINE,
    PARK_ALLOWED,
    PARK_SEVERAL,
    PARK_WHOLE,
    TOGETHER_PARK,
    TOGETHER_WHOLE,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NAME_ALLOWED = "use at most 63 letters, digits, dots, _ and -; the first is a letter or digit"
CORE_ALLOWED = "a whole number from 1 to 100, in percent of a card's compute (above 100: --rules 2026)"
CORE_2026 = "5 to 95 in steps of 5, or 100 and more for several cards, by qGPU's rules of 2026"
ALL_CARDS = 0  # instead of a number of cards: every card of a node
_MOST_WORDS = 64  # of the command line, kept for display: everybody's `ps` gets it for every run
_LONGEST_WORD = 256
_LONGEST_COMMAND = 1024  # characters in all
_INTERPRETERS = re.compile(r"python[0-9.]*|torchrun|bash|sh|node|perl|ruby")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One `aliquot run`. Memory in MiB, core in percent of a card; None: not given."""

    command: tuple[str, ...]
    name: str | None = None
    app_class: AppClass = AppClass.NORMAL
    core: int | None = None
    memory_mib: int | None = None
    gpus: int = 1
    wait: bool = True
    detach: bool = False
    park_after: float | None = None  # seconds idle after which its memory may be parked
    group: str = ""  # shares its cards in space with others of this group
    latency: float | None = None  # seconds that online work accepts to have added to its requests
    spread_core: int | None = None  # the core that was asked for, if it is why it has several cards
    memory_percent: float | None = None  # of each card's memory, instead of `memory_mib`

    @property
    def whole(self) -> bool:
        """Whether it asks for whole cards."""
        return self.memory_mib is None and self.memory_percent is None and self.core is None

    def slice(self) -> Slice:
        """Neither memory nor core: the whole card. Core only: the same percentage of memory. Memory only: no quota."""
        if self.whole:
            return Slice(memory_percent=100, exclusive=True)
        milli = None if self.core is None else self.core * 10
        offline = self.app_class is AppClass.OFFLINE
        return Slice(
            memory_mib=self.memory_mib or 0,
            memory_percent=(self.memory_percent or self.core or 0) if self.memory_mib is None else 0,
            core_milli=None if offline else milli,
            greedy_milli=milli if offline else None,
        )

    def claim(self, uid: str, name: str) -> Claim:
        """The request as a claim for the placement."""
        main = ContainerClaim("main", 0, Role.MAIN, self.slice(), self.gpus)
        return Claim(
            uid, "local", name, "run", Offer.ANY, (main,),
            app_class=self.app_class, park_after=self.park_after, group=self.group, latency=self.latency,
        )  # fmt: skip


def parse_rules(named: object) -> QgpuRules | Invalid:
    """The version of qGPU's rules that a request names."""
    if named is None:
        return QgpuRules.SEED
    if isinstance(named, str) and named in tuple(QgpuRules):
        return QgpuRules(named)
    return Invalid("rules", named, " or ".join(QgpuRules))


def parse_run_request(message: Mapping[str, Any]) -> RunRequest | Invalid:
    """The request, or its first invalid field."""
    command = message.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        return Invalid("command", command, "a list of strings, the program first")
    name = message.get("name")
    if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
        return Invalid("name", name, _NAME_ALLOWED)
    try:
        app_class = AppClass.of_this_release(message.get("class", "normal"))
    except ValueError:
        return Invalid("class", message.get("class"), "online, offline or normal")
    rules = parse_rules(message.get("rules"))
    if isinstance(rules, Invalid):
        return rules
    several = rules is QgpuRules.Y2026 and app_class is AppClass.NORMAL  # a core above 100 is that of several cards
    core, memory, gpus = message.get("core"), message.get("memory_mib"), message.get("gpus", 1)
    if core is not None and not _within(core, 1, 100 if not several else 100 << 16):
        return Invalid("core", core, CORE_ALLOWED)
    if memory is not None and not _within(memory, 1, 1 << 30):
        return Invalid("memory", memory, "at least 1MiB")
    percent = message.get("memory_percent")
    if percent is not None and (memory is not None or not _is_number(percent) or not 0 < percent <= 100):
        return Invalid("memory", percent, "above 0% and at most 100% of each card, instead of an amount")
    if gpus == "all":
        gpus = ALL_CARDS
    elif not _within(gpus, 1, 1 << 16):
        return Invalid("gpus", gpus, "a whole number, at least 1, or all")
    asked = None
    if core is not None and several:
        spread = _spread(core, memory, gpus)
        if isinstance(spread, Invalid):
            return spread
        asked, (core, memory, gpus) = core if core >= 100 else None, spread
        if asked is not None and percent is not None:
            return Invalid("memory", f"{percent:g}%", "an amount with a core of 100 or more")
    for flag in ("wait", "detach"):
        if not isinstance(message.get(flag, False), bool):
            return Invalid(flag, message.get(flag), "true or false")
    park = message.get("park")
    if park is not None and (not _is_number(park) or not 0 <= park <= LONGEST_PARK):
        return Invalid("park", park, PARK_ALLOWED)
    whole = core is None and memory is None and percent is None
    if park is not None and whole:
        return Invalid("park", duration(float(park)), PARK_WHOLE)
    if park is not None and gpus != 1:
        return Invalid("park", duration(float(park)), PARK_SEVERAL)
    group = message.get("together", "")
    if group and not (isinstance(group, str) and NAME.fullmatch(group)):
        return Invalid("together", group, _NAME_ALLOWED)
    if group and whole:
        return Invalid("together", group, TOGETHER_WHOLE)
    if group and park is not None:
        return Invalid("together", group, TOGETHER_PARK)
    latency = message.get("latency")
    if latency is not None:
        if not _is_number(latency) or not LEAST_LATENCY <= latency <= MOST_LATENCY:
            return Invalid("latency", latency, LATENCY_ALLOWED)
        if app_class is not AppClass.ONLINE:
            return Invalid("latency", duration(float(latency)), LATENCY_ONLINE)
        latency = float(latency)
    words, wait, detach = _shown(command), message.get("wait", True), message.get("detach", False)
    park_after = None if park is None else float(park)
    return RunRequest(
        words, name, app_class, core, memory, gpus, wait, detach, park_after, group, latency, asked, percent
    )


def _spread(core: int, memory: int | None, gpus: int) -> tuple[int | None, int | None, int] | Invalid:
    """Core, memory and number of cards by qGPU's rules of 2026."""
    if core < 100:
        return Invalid("core", core, CORE_2026) if core % 5 else (core, memory, gpus)
    if gpus != 1:
        return Invalid("gpus", gpus, f"a core of {core} is already the compute of {-(-core // 100)} cards: omit --gpus")
    cards, rest = divmod(core, 100)
    if not rest:
        return None, None, cards  # whole cards come with all their memory
    cards += 1
    if memory is not None and memory < cards:
        allowed = f"at least {amounts.memory(cards)}: a core of {core} is spread over {cards} cards"
        return Invalid("memory", amounts.memory(memory), allowed)
    return core // cards, None if memory is None else memory // cards, cards


def on_all_cards(request: RunRequest, nodes: Sequence[Sequence[Card]]) -> RunRequest:
    """The request with the number of cards that the largest node has, where it asks for all of them."""
    return replace(request, gpus=max(map(len, nodes))) if request.gpus == ALL_CARDS else request


def never_fits(request: RunRequest, nodes: Sequence[Sequence[Card]]) -> Invalid | None:
    """The field that would not fit even on the empty machine. All cards of a run are on one node."""
    most = max(map(len, nodes))
    if request.gpus > most and request.spread_core is not None:
        where = "this machine" if len(nodes) == 1 else "a node"
        return Invalid("core", request.spread_core, f"at most {100 * most}: {where} has {count(most, 'card')}")
    if request.gpus > most:
        why = "this machine has no more cards" if len(nodes) == 1 else "no node has more cards"
        return Invalid("gpus", request.gpus, f"at most {most}: {why}")
    sizes = [card.memory_mib for cards in nodes for card in cards]
    if request.memory_mib is not None and request.memory_mib > max(sizes):
        wanted, largest = needed_and_had(request.memory_mib, max(sizes))
        return Invalid("memory", wanted, f"at most {largest}: the largest card here")
    enough = max(sum(card.memory_mib >= (request.memory_mib or 0) for card in cards) for cards in nodes)
    if request.gpus > enough:
        return Invalid(
            "gpus",
            request.gpus,
            f"at most {enough} with {memory(request.memory_mib or 0)} each: no more cards are that large",
        )
    return None


def readable_name(command: tuple[str, ...]) -> str:
    """A short name for the run: the script if an interpreter runs one, else the program."""
    words = [_stem(word) for word in command]
    if _INTERPRETERS.fullmatch(words[0]) or _INTERPRETERS.fullmatch(os.path.basename(command[0])):
        for at, word in enumerate(command[1:], 1):
            if word == "-m" and at + 1 < len(command):
                return _clean(command[at + 1])
            if word == "-c":
                break
            if not word.startswith("-") and "." in word:
                return _clean(words[at])
    return _clean(words[0])


def _stem(word: str) -> str:
    base = os.path.basename(word)
    return base.partition(".")[0] if base.endswith((".py", ".sh")) else base


def _clean(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", word).strip("-_")[:24] or "run"


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _shown(command: Sequence[str]) -> tuple[str, ...]:
    words: list[str] = []
    left = _LONGEST_COMMAND
    for word in command[:_MOST_WORDS]:
        if left <= 0:
            break
        words.append(_printable(word[: min(_LONGEST_WORD, left)]))
        left -= len(words[-1]) + 1
    return tuple(words)


def _printable(word: str) -> str:
    return word.encode("utf-8", "replace").decode()
