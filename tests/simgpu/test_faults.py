"""A simulated card falls off the bus, comes back, has Xids; what NVML, CUDA and the health checks make of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simgpu import faults
from simgpu.rig import Player, Tenant, checked_player, wait_until

LAUNCH_FAILED, UNAVAILABLE = 719, 46
FIRST, SECOND = "GPU-5106f000-51b6-4a11-9000-000000000000", "GPU-5106f001-51b6-4a11-9000-000000000001"


@pytest.fixture
def two() -> Iterator[Player]:
    with Player("--cards", "2", program=checked_player()) as player:
        yield player


def serving(player: Player, card: int = 0) -> Tenant:
    tenant = player.start("serve", CUDA_VISIBLE_DEVICES=str(card))
    tenant.hear()
    return tenant


class TestOffTheBus:
    def test_programs_on_a_lost_card_fail(self, two: Player) -> None:
        tenant = serving(two)
        assert tenant.ask({"do": "launch", "us": 60_000_000})
        faults.lose(two.socket, 0)
        assert tenant.ask({"do": "attempt", "call": "cuCtxSynchronize"}) == LAUNCH_FAILED
        assert tenant.ask({"do": "allocate", "mib": 1}) == LAUNCH_FAILED
        assert [card.lost for card in two.cards()] == [True, False]
        assert two.card().compute(tenant.pid)[0].dead

    def test_a_program_that_waits_for_a_lost_card_is_woken(self, two: Player) -> None:
        tenant = serving(two)
        tenant.ask({"do": "launch", "us": 60_000_000})
        tenant.say({"do": "attempt", "call": "cuCtxSynchronize"})
        wait_until(lambda: two.card().compute(tenant.pid)[0].queued, "the kernel runs")
        faults.lose(two.socket, 0)
        assert tenant.hear() == LAUNCH_FAILED

    def test_no_new_program_gets_onto_a_lost_card(self, two: Player) -> None:
        faults.lose(two.socket, 0)
        assert two.run("context_on", 0) == UNAVAILABLE

    def test_the_neighbour_of_a_lost_card_notices_nothing(self, two: Player) -> None:
        tenant = serving(two, card=1)
        faults.lose(two.socket, 0)
        assert tenant.ask({"do": "launch", "us": 100})
        assert tenant.ask({"do": "attempt", "call": "cuCtxSynchronize"}) == 0

    def test_controls_on_a_lost_card_answer_that_it_is_lost(self, two: Player) -> None:
        tenant = serving(two)
        file, group = tenant.rm_file(), tenant.group()
        faults.lose(two.socket, 0)
        assert file.set_slice(group, 3000) == 0x0F
        file.close()

    def test_nvml_says_that_it_is_lost_and_lists_the_other(self, two: Player) -> None:
        faults.lose(two.socket, 0)
        assert two.run("nvml_lost") == ["lost", SECOND, "lost", SECOND]

    def test_a_card_that_is_back_takes_new_programs_and_the_old_stay_dead(self, two: Player) -> None:
        old = serving(two)
        faults.lose(two.socket, 0)
        faults.restore(two.socket, 0)
        assert old.ask({"do": "allocate", "mib": 1}) == LAUNCH_FAILED
        old.kill()
        wait_until(lambda: two.card().used == 0, "its memory is free")
        new = serving(two)
        new.ask({"do": "launch", "us": 100})
        assert new.ask({"do": "attempt", "call": "cuCtxSynchronize"}) == 0


class TestXids:
    def test_an_event_set_receives_xids_after_its_creation(self, two: Player) -> None:
        faults.raise_xid(two.socket, 0, 13)
        listener = two.start("nvml_events")
        assert listener.hear() == [FIRST, SECOND]
        assert listener.ask("next") is None
        faults.raise_xid(two.socket, 1, 31)
        faults.raise_xid(two.socket, 0, 79)
        assert [listener.ask("next"), listener.ask("next"), listener.ask("next")] == [[SECOND, 31], [FIRST, 79], None]

    def test_of_very_many_xids_the_newest_are_kept(self, two: Player) -> None:
        listener = two.start("nvml_events")
        listener.hear()
        for number in range(100):
            faults.raise_xid(two.socket, 0, number)
        assert listener.ask("next") == [FIRST, 36]

    @pytest.mark.parametrize(("card", "xid"), [(2, 79), (0, 2**32)])
    def test_impossible_xids_are_refused(self, two: Player, card: int, xid: int) -> None:
        with pytest.raises(OSError, match="the player refuses"):
            faults.raise_xid(two.socket, card, xid)


class TestHealth:
    """The health checks of cards, with the real NVML binding on the stand-in."""

    def test_a_card_falls_off_and_is_reset(self, two: Player) -> None:
        keeper = two.start("nvml_health")
        becomes(keeper, [True, True])
        faults.lose(two.socket, 0)
        becomes(keeper, [False, True], "Xid 79, it fell off the bus")
        faults.restore(two.socket, 0)
        becomes(keeper, [True, True])
        faults.raise_xid(two.socket, 0, 48)
        becomes(keeper, [False, True], "Xid 48, a memory error that could not be corrected")

    def test_a_card_falls_off_and_comes_back_without_a_word(self, two: Player) -> None:
        keeper = two.start("nvml_health")
        becomes(keeper, [True, True])
        faults.lose(two.socket, 1, xid=None)
        becomes(keeper, [True, False], "the driver does not answer for this card: GPU is lost")
        faults.restore(two.socket, 1)
        becomes(keeper, [True, True])

    def test_an_applications_fault_changes_nothing(self, two: Player) -> None:
        keeper = two.start("nvml_health")
        becomes(keeper, [True, True])
        faults.raise_xid(two.socket, 0, 31)
        faults.raise_xid(two.socket, 1, 74)
        becomes(keeper, [True, False], "Xid 74, its NVLink failed")

    def test_health_knows_nothing_of_a_card_lost_before_its_start(self, two: Player) -> None:
        """Nobody can say which card it is; an agent has it remembered."""
        faults.lose(two.socket, 0)
        keeper = two.start("nvml_health")
        becomes(keeper, [True])


def becomes(keeper: Tenant, healthy: list[bool], *why: str) -> None:
    wait_until(lambda: keeper.ask("how are they?") == [healthy, list(why)], f"{healthy} {why}")


class TestMigMode:
    def test_nvml_says_that_mig_mode_is_on(self, two: Player) -> None:
        assert two.run("nvml_withheld") == ["", ""]
        faults.set_mig(two.socket, 1, on=True)
        assert two.run("nvml_withheld") == ["", "MIG mode is on"]
        faults.set_mig(two.socket, 1, on=False)
        assert two.run("nvml_withheld") == ["", ""]
