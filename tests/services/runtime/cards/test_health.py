"""Which cards are well after each look and each error of the driver. The rule: tests/model/cardstate/test_health.py."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from aliquot.adapters.gpu.nvml import NvmlError, Xid
from aliquot.model.device import Card
from aliquot.model.withheld import MIG_MODE
from aliquot.services.runtime.cards import health as module
from aliquot.services.runtime.cards.health import CardHealth
from kit.cards.arbiterd import until
from kit.running.logged import logged

CARDS = (Card(0, 81920, uuid="GPU-a", model="H"), Card(1, 40960, uuid="GPU-b", model="A", numa=1))


class PlayedDriver:
    """NVML, as a test says."""

    def __init__(self, *cards: Card) -> None:
        self.listed: tuple[Card, ...] = cards
        self.silent: dict[str, NvmlError] = {}
        self.errors: queue.SimpleQueue[Xid | NvmlError] = queue.SimpleQueue()
        self.watching: list[tuple[str, ...]] = []
        self.listened_to: set[str] = set()  # a watch hears nothing of a card that was lost, though it is back
        self.open_watches = 0
        self.reopened = 0
        self.hang = threading.Event()
        self.hang.set()

    def cards(self) -> tuple[Card, ...]:
        return tuple(replace(card, healthy=card.uuid not in self.silent) for card in self.listed)

    def memory(self, uuid: str) -> tuple[int, int]:
        self.hang.wait()
        if uuid in self.silent:
            raise self.silent[uuid]
        if uuid not in {card.uuid for card in self.listed}:
            raise NvmlError(f"{uuid}: NVML lists no such card", reason="it is not listed", lost=True)
        return 0, 1

    def watch(self, uuids: Sequence[str]) -> PlayedDriver:
        self.watching.append(tuple(uuids))
        self.listened_to = set(uuids) - self.silent.keys()
        self.open_watches += 1
        return self

    def wait(self, seconds: float) -> Xid | None:
        try:
            found = self.errors.get(timeout=seconds) if seconds else self.errors.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, NvmlError):
            raise found
        return found

    def close(self) -> None:
        self.open_watches -= 1

    def reopen(self) -> None:
        assert self.open_watches == 0, "an event set does not live longer than NVML"
        self.reopened += 1

    def lose(self, uuid: str) -> None:
        self.silent[uuid] = NvmlError(f"{uuid}: GPU is lost", reason="GPU is lost", lost=True)
        self.listened_to.discard(uuid)


@pytest.fixture
def driver() -> PlayedDriver:
    return PlayedDriver(*CARDS)


def look(health: CardHealth, times: int) -> None:
    for _ in range(times):
        health.check()


def healthy(health: CardHealth) -> list[bool]:
    return [card.healthy for card in health.cards]


def test_health_starts_with_the_drivers_cards(driver: PlayedDriver) -> None:
    health = CardHealth(driver)
    assert health.cards == CARDS
    assert health.why == {}


def test_a_lost_card_is_out_with_the_drivers_reason_and_back_after_three_checks(driver: PlayedDriver) -> None:
    health = CardHealth(driver)
    driver.lose("GPU-b")
    look(health, 1)
    assert healthy(health) == [True, False]
    assert health.why == {"GPU-b": "the driver does not answer for this card: GPU is lost"}
    del driver.silent["GPU-b"]
    look(health, 2)
    assert healthy(health) == [True, False]
    look(health, 1)
    assert (health.cards, health.why) == (CARDS, {})


def test_an_xid_takes_a_card_out_though_it_answers_every_check(driver: PlayedDriver) -> None:
    health = CardHealth(driver)
    health.record(Xid("GPU-a", 48))
    look(health, 10)
    assert healthy(health) == [False, True]
    assert health.why["GPU-a"].startswith("Xid 48")
    assert health.xids == {"GPU-a": 48}


def test_xids_of_applications_and_of_unknown_cards_change_nothing(driver: PlayedDriver) -> None:
    health = CardHealth(driver, ignored={94})
    for error in (Xid("GPU-a", 31), Xid("GPU-a", 94), Xid("GPU-x", 79)):
        health.record(error)
    assert healthy(health) == [True, True]


def test_card_that_fails_or_comes_back_is_logged_once(driver: PlayedDriver, caplog: pytest.LogCaptureFixture) -> None:
    health = CardHealth(driver)
    look(health, 3)
    driver.lose("GPU-a")
    look(health, 3)
    health.record(Xid("GPU-a", 79))
    assert health.why["GPU-a"] == "Xid 79, it fell off the bus"
    del driver.silent["GPU-a"]
    look(health, 5)
    assert logged(caplog) == [
        ("card_out", {"card": 0, "uuid": "GPU-a", "why": "the driver does not answer for this card: GPU is lost"}),
        ("xid", {"card": "GPU-a", "xid": 79}),
        ("card_back", {"card": 0, "uuid": "GPU-a"}),
    ]


def test_a_card_that_is_no_longer_listed_stays_with_its_number_and_is_out(driver: PlayedDriver) -> None:
    """The driver counts anew without it."""
    driver.listed = (replace(CARDS[1], index=0),)
    health = CardHealth(driver, remembered=CARDS)
    assert health.cards == (replace(CARDS[0], healthy=False), CARDS[1])
    assert list(health.why) == ["GPU-a"]
    driver.listed = CARDS
    look(health, 3)
    assert health.cards == CARDS


def test_a_card_that_is_new_takes_a_number_that_is_free(driver: PlayedDriver) -> None:
    new = Card(0, 1024, uuid="GPU-new")
    driver.listed = (new, replace(CARDS[1], index=1))
    health = CardHealth(driver, remembered=CARDS)
    assert [(card.index, card.uuid) for card in health.cards] == [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-new")]


def test_a_card_that_is_silent_at_first_has_the_size_that_is_remembered_of_it(driver: PlayedDriver) -> None:
    driver.listed = (Card(0, 0, uuid="GPU-a"), CARDS[1])
    driver.lose("GPU-a")
    assert CardHealth(driver, remembered=CARDS).cards == (replace(CARDS[0], healthy=False), CARDS[1])


def test_a_card_that_was_silent_from_the_start_is_measured_when_it_answers(driver: PlayedDriver) -> None:
    driver.listed = (Card(0, 0, uuid="GPU-a"), CARDS[1])
    driver.lose("GPU-a")
    health = CardHealth(driver)
    assert health.cards[0] == Card(0, 0, uuid="GPU-a", healthy=False)
    driver.silent.clear()
    driver.listed = CARDS
    look(health, 3)
    assert health.cards == CARDS


def test_a_driver_that_lists_nothing_at_all_takes_all_out(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PlayedDriver()

    def fails() -> tuple[Card, ...]:
        raise NvmlError("NVML: Unknown Error")

    monkeypatch.setattr(driver, "cards", fails)
    assert healthy(CardHealth(driver, remembered=CARDS)) == [False, False]


class TestThreads:
    @pytest.fixture(autouse=True)
    def fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_EVERY", 0.01)

    @pytest.fixture
    def health(self, driver: PlayedDriver) -> CardHealth:
        return CardHealth(driver)

    @pytest.fixture(autouse=True)
    def run(self, fast: None, driver: PlayedDriver, health: CardHealth) -> object:
        health.start()
        yield
        driver.hang.set()
        health.stop()
        assert not any(thread.is_alive() for thread in health._threads)
        assert driver.open_watches == 0

    def test_health_threads_receive_xids_and_check_cards(self, driver: PlayedDriver, health: CardHealth) -> None:
        driver.errors.put(Xid("GPU-a", 79))
        until(lambda: healthy(health) == [False, True], "the Xid")
        driver.lose("GPU-b")
        until(lambda: healthy(health) == [False, False], "the look")

    def test_nvml_is_reopened_now_and_then_while_a_card_is_lost(self, driver: PlayedDriver, health: CardHealth) -> None:
        driver.lose("GPU-b")
        until(lambda: driver.reopened >= 2, "the opening")
        driver.silent.clear()
        until(lambda: healthy(health) == [True, True], "its return")

    def test_nvml_is_reopened_ever_more_seldom(self, driver: PlayedDriver) -> None:
        health = CardHealth(driver)

        def reopened(looks: int) -> list[int]:
            found = []
            for at in range(1, looks + 1):
                health.check()
                if health._is_time_to_reopen():
                    found.append(at)
            return found

        driver.lose("GPU-b")
        assert reopened(300) == [5, 15, 35, 75, 155, 235]
        driver.silent.clear()
        assert reopened(3) == []
        driver.lose("GPU-b")
        assert reopened(5) == [5]

    def test_a_card_that_is_back_is_watched_again(self, driver: PlayedDriver, health: CardHealth) -> None:
        health._patience = 1 << 30  # it is not for the opening of NVML
        driver.lose("GPU-b")
        until(lambda: not all(healthy(health)), "its loss")
        driver.silent.clear()
        until(lambda: driver.listened_to == {"GPU-a", "GPU-b"}, "a new watch")
        assert all(healthy(health))
        driver.errors.put(Xid("GPU-b", 79))
        until(lambda: healthy(health) == [True, False], "the Xid")

    def test_a_failed_xid_watch_is_renewed(self, driver: PlayedDriver, health: CardHealth) -> None:
        driver.errors.put(NvmlError("NVML: Unknown Error"))
        until(lambda: len(driver.watching) >= 2, "another watch")
        driver.errors.put(Xid("GPU-a", 79))
        until(lambda: healthy(health) == [False, True], "the Xid")

    def test_a_card_at_which_the_driver_hangs_is_out_until_it_answers(
        self, driver: PlayedDriver, health: CardHealth, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_HANGS", 0.05)
        driver.hang.clear()
        until(lambda: healthy(health).count(False) == 1, "the noticing")
        assert "hangs" in next(iter(health.why.values()))
        driver.hang.set()
        until(lambda: healthy(health) == [True, True], "its return")


def test_mig_mode_is_noticed_when_it_is_switched_on_and_off() -> None:
    driver = PlayedDriver(*CARDS)
    health = CardHealth(driver)
    for withheld in (MIG_MODE, None):
        driver.listed = (replace(CARDS[0], withheld=withheld), CARDS[1])
        for _ in range(module._RELIST):
            health.check()
        assert [card.withheld for card in health.cards] == [withheld, None]
        assert all(card.healthy for card in health.cards), "it is not sick"
