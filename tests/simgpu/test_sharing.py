"""How a simulated card is shared: by slices, pauses, and what goes wrong with them. Every share is read from the card's
own accounts, so that a busy machine changes nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time

import pytest

from simgpu.rig import (
    DISABLE_CHANNELS,
    GET_GID_INFO,
    GET_TIMESLICE,
    INSUFFICIENT_PERMISSIONS,
    INVALID_CLIENT,
    INVALID_OBJECT,
    NOT_SUPPORTED,
    OK,
    SUBDEVICE,
    Player,
    RmFile,
    Tenant,
    wait_until,
)


def busy_tenant(player: Player, kernel_us: float = 20_000, count: int = 500) -> tuple[Tenant, RmFile]:
    """A tenant with a queue that outlasts the test, and its RM file."""
    tenant = player.start("serve")
    assert tenant.hear() == "ready"
    file = tenant.rm_file()
    assert tenant.ask({"do": "launch", "us": kernel_us, "count": count})
    return tenant, file


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([2048, 2048], [0.476, 0.476]),
        ([3000, 7000], [0.29, 0.69]),
        ([2000, 3000, 5000], [0.19, 0.29, 0.49]),
    ],
)
def test_slices_are_shares_less_the_cost_of_switching(slices: list[int], expected: list[float]) -> None:
    with Player("--memory", "8192") as player:
        tenants = [busy_tenant(player) for _ in slices]
        for (tenant, file), us in zip(tenants, slices, strict=True):
            assert file.set_slice(tenant.group(), us) == OK
            assert file.get_slice(tenant.group()) == us
        shares = player.shares([tenant for tenant, _ in tenants], 0.5)
        assert shares == pytest.approx(expected, abs=0.015)


def test_the_cost_of_switching_can_be_chosen() -> None:
    with Player("--memory", "8192", "--switch-us", "1000") as player:
        tenants = [busy_tenant(player)[0] for _ in range(2)]
        assert player.shares(tenants, 0.3) == pytest.approx([0.25, 0.25], abs=0.02)


def test_kernels_of_any_length_are_cut_at_the_end_of_the_slice(player: Player) -> None:
    short, _ = busy_tenant(player, kernel_us=4000)
    long, _ = busy_tenant(player, kernel_us=10_000_000, count=3)
    assert player.shares([short, long], 0.4) == pytest.approx([0.476, 0.476], abs=0.015)


def test_alone_even_the_smallest_slice_has_the_whole_card(player: Player) -> None:
    tenant, file = busy_tenant(player)
    assert file.set_slice(tenant.group(), 1) == OK
    before = player.card()
    assert player.shares([tenant], 0.2) == pytest.approx([1.0], abs=0.001)
    assert player.card().switches == before.switches


def test_two_contending_with_the_smallest_slices_get_nothing_done(player: Player) -> None:
    """The livelock of the real card: the switches eat both slices."""
    tenants = [busy_tenant(player) for _ in range(2)]
    for tenant, file in tenants:
        file.set_slice(tenant.group(), 1)
    wait_until(lambda: player.shares([t for t, _ in tenants], 0.02) == [0, 0], "nobody gets anything")
    assert player.shares([tenant for tenant, _ in tenants], 0.2) == [0, 0]
    tenants[0][1].set_slice(tenants[0][0].group(), 5000)
    wait_until(lambda: player.shares([tenants[0][0]], 0.05)[0] > 0.9, "the one with a real slice has the card")


def test_the_smallest_slice_beside_a_long_one_gets_nothing_while_that_has_work(player: Player) -> None:
    (offline, offline_file), (online, online_file) = busy_tenant(player), busy_tenant(player)
    online_file.set_slice(online.group(), 1_000_000)
    offline_file.set_slice(offline.group(), 1)
    wait_until(lambda: online.group().current, "the online tenant has the card")
    shares = player.shares([offline, online], 0.3)
    assert shares[0] < 0.005
    assert shares[1] > 0.98


def test_an_expired_slice_is_cut_in_mid_kernel_when_another_has_work(player: Player) -> None:
    """Online work beside an offline tenant with a slice of 1 us waits for a switch, not for its kernel. (For two
    switches when the card was just going back to the other.)"""
    offline, offline_file = busy_tenant(player, kernel_us=1_000_000)
    online = player.start("serve")
    online.hear()
    offline_file.set_slice(offline.group(), 1)
    online.rm_file().set_slice(online.group(), 1_000_000)
    for slot in range(5):
        before = time.monotonic_ns()
        online.ask({"do": "launch", "us": 100, "slot": slot})
        issued = time.monotonic_ns()
        online.ask({"do": "synchronize"})
        count, start, end = online.ask({"do": "times", "slot": slot})
        assert count == 1
        assert end - start == 100_000
        assert before + 100_000 <= start <= issued + 200_000


def test_a_slice_that_has_not_ended_is_not_cut(player: Player) -> None:
    first, first_file = busy_tenant(player, kernel_us=1_000_000)
    first_file.set_slice(first.group(), 300_000)
    second = player.start("serve")
    second.hear()
    second.rm_file().set_slice(second.group(), 300_000)
    second.ask({"do": "launch", "us": 1000, "slot": 0})
    wait_until(lambda: second.ask({"do": "done"}), "the second tenant had its turn")
    # From here on the slice of the first is a new one.
    time.sleep(0.02)
    issued = time.monotonic_ns()
    second.ask({"do": "launch", "us": 1000, "slot": 1})
    second.ask({"do": "synchronize"})
    assert second.ask({"do": "times", "slot": 1})[1] > issued + 100_000_000


def test_a_pause_stops_a_kernel_half_way_and_a_resume_goes_on_from_there(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    file = tenant.rm_file()
    tenant.ask({"do": "launch", "us": 150_000, "slot": 0})
    time.sleep(0.02)
    assert file.pause(tenant.group()) == OK
    time.sleep(0.002)  # it stands still 50 us after the order
    half = tenant.group().busy_ns
    assert 0 < half < 150_000_000
    time.sleep(0.2)
    assert tenant.group().busy_ns == half
    assert tenant.group().stopped == 4
    assert not tenant.ask({"do": "done"})
    assert file.resume(tenant.group()) == OK
    tenant.ask({"do": "synchronize"})
    count, start, end = tenant.ask({"do": "times", "slot": 0})
    assert count == 1
    assert end - start > 350_000_000  # its own time and the pause
    assert tenant.group().busy_ns - 150_000_000 < 1_000_000  # not a nanosecond of work lost or done twice (and a copy)


def test_work_handed_over_during_a_pause_is_held(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    file = tenant.rm_file()
    file.pause(tenant.group())
    tenant.ask({"do": "launch", "us": 1000, "count": 20})
    time.sleep(0.1)
    assert tenant.group().busy_ns == 0
    assert tenant.group().queued == 20
    file.resume(tenant.group())
    tenant.ask({"do": "synchronize"})
    assert tenant.group().busy_ns == 20_000_000


def test_a_paused_tenant_leaves_the_card_to_the_others(player: Player) -> None:
    (paused, file), (other, _) = busy_tenant(player), busy_tenant(player)
    file.pause(paused.group())
    time.sleep(0.01)
    assert player.shares([paused, other], 0.2) == pytest.approx([0, 1], abs=0.001)


def test_channels_made_during_a_pause_are_not_covered_by_it(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    file = tenant.rm_file()
    before = tenant.group()
    file.pause(before)
    streams = [tenant.ask({"do": "stream"}) for _ in range(6)]
    assert len(tenant.group().channels) > len(before.channels)
    for stream in streams:
        tenant.ask({"do": "launch", "us": 1000, "stream": stream})
    wait_until(lambda: tenant.ask({"do": "done", "stream": streams[-1]}), "the new channel ran its work")
    assert not tenant.ask({"do": "done", "stream": streams[0]})
    file.pause(tenant.group())
    file.resume(tenant.group())
    tenant.ask({"do": "synchronize"})


def test_refused_controls_change_nothing() -> None:
    with Player("--memory", "8192", "--refuse-controls") as player:
        tenant, file = busy_tenant(player)
        assert file.set_slice(tenant.group(), 1000) == INSUFFICIENT_PERMISSIONS
        assert file.pause(tenant.group()) == INSUFFICIENT_PERMISSIONS
        assert file.get_slice(tenant.group()) == 2048
        assert player.shares([tenant], 0.1) == pytest.approx([1], abs=0.001)


def test_a_control_answers_as_late_as_configured() -> None:
    with Player("--memory", "8192", "--control-us", "30000") as player:
        tenant, file = busy_tenant(player)
        group = tenant.group()
        start = time.monotonic()
        assert file.get_slice(group) == 2048
        middle = time.monotonic()
        assert file.set_slice(group, 3000) == OK
        assert time.monotonic() - middle >= 0.03 > middle - start


def test_a_hung_driver_answers_no_ioctl_and_plays_on() -> None:
    with Player("--memory", "8192", "--hang-after", "1") as player:
        tenant, file = busy_tenant(player)
        group = tenant.group()
        assert file.set_slice(group, 3000) == OK
        answered = threading.Event()

        def ask() -> None:
            with contextlib.suppress(OSError):  # when the player ends
                file.get_slice(group)
                answered.set()

        threading.Thread(target=ask, daemon=True).start()
        assert not answered.wait(0.3)
        assert player.shares([tenant], 0.1) == pytest.approx([1], abs=0.001)


def test_the_card_of_a_subdevice_is_known_by_its_uuid(player: Player) -> None:
    tenant, file = busy_tenant(player)
    status, answer = file.control(tenant.group().client, SUBDEVICE, GET_GID_INFO, bytes(268))
    assert status == OK
    index, flags, length = struct.unpack_from("=3I", answer)
    assert (index, flags) == (0, 0)
    assert answer[12 : 12 + length] == player.card().uuid.encode() + b"\0"


def test_wrong_handles_and_unknown_controls_are_refused(player: Player) -> None:
    tenant, file = busy_tenant(player)
    group = tenant.group()
    assert file.control(group.client, 0x77, GET_TIMESLICE, bytes(8))[0] == INVALID_OBJECT
    assert file.control(0x77, group.group, GET_TIMESLICE, bytes(8))[0] == INVALID_CLIENT
    assert file.control(group.client, group.group, 0xA06C0199, bytes(8))[0] == NOT_SUPPORTED
    assert file.control(group.client, SUBDEVICE, DISABLE_CHANNELS, bytes(8))[0] not in (OK, NOT_SUPPORTED)
    assert file.control(group.client, group.group, DISABLE_CHANNELS, bytes(536))[0] != OK
    with pytest.raises(OSError, match="Invalid argument"):
        file.control(group.client, group.group, GET_TIMESLICE, bytes(5000))


def test_a_player_that_gets_no_processor_distorts_nothing(player: Player) -> None:
    """What happened meanwhile is played when it wakes: shares and times are those of a player that was always awake."""
    tenants = [busy_tenant(player) for _ in range(2)]
    for (tenant, file), us in zip(tenants, (3000, 7000), strict=True):
        file.set_slice(tenant.group(), us)
    before = player.card()
    os.kill(player.process.pid, signal.SIGSTOP)
    time.sleep(0.4)
    os.kill(player.process.pid, signal.SIGCONT)
    after = player.card()
    elapsed = after.now_ns - before.now_ns
    assert elapsed > 400_000_000
    for (tenant, _), share in zip(tenants, (0.29, 0.69), strict=True):
        busy = after.compute(tenant.pid)[0].busy_ns - before.compute(tenant.pid)[0].busy_ns
        assert busy / elapsed == pytest.approx(share, abs=0.02)


def test_work_begins_when_it_is_handed_over_even_if_the_player_sleeps(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    os.kill(player.process.pid, signal.SIGSTOP)
    before = time.monotonic_ns()
    tenant.ask({"do": "launch", "us": 1000, "slot": 0})
    issued = time.monotonic_ns()
    time.sleep(0.1)
    os.kill(player.process.pid, signal.SIGCONT)
    tenant.ask({"do": "synchronize"})
    _, start, end = tenant.ask({"do": "times", "slot": 0})
    assert before < start < issued + 100_000  # the first switch to its context
    assert end - start == 1_000_000


def test_copies_wait_for_no_turn(player: Player) -> None:
    busy, file = busy_tenant(player)
    assert file.set_slice(busy.group(), 1_000_000) == OK
    other = player.start("serve")
    assert other.hear() == "ready"
    assert 10.0 < other.ask({"do": "copy", "size": 250_000_000}) < 1000, "in turns it would take five seconds"
    assert player.shares([busy], 0.05) == pytest.approx([1.0], abs=0.001), "nor does it wait for them"


def test_copies_stop_while_their_channels_are_paused(player: Player) -> None:
    tenant = player.start("serve")
    assert tenant.hear() == "ready"
    file = tenant.rm_file()
    stream = tenant.ask({"do": "stream"})
    tenant.ask({"do": "launch", "us": 1, "stream": stream})  # its channel is there
    tenant.ask({"do": "synchronize"})
    assert file.pause(tenant.group()) == OK
    tenant.ask({"do": "copy", "size": 2_500_000, "stream": stream})
    time.sleep(0.1)
    assert not tenant.ask({"do": "done", "stream": stream})
    assert file.resume(tenant.group()) == OK
    wait_until(lambda: tenant.ask({"do": "done", "stream": stream}), "the copy ends")


def test_each_card_is_shared_by_itself() -> None:
    with Player("--cards", "2", "--memory", "8192") as player:
        first = player.start("serve", CUDA_VISIBLE_DEVICES="0")
        second = player.start("serve", CUDA_VISIBLE_DEVICES="1")
        for tenant in (first, second):
            assert tenant.hear() == "ready"
            tenant.ask({"do": "launch", "us": 20_000, "count": 100})
        time.sleep(0.2)
        cards = player.cards()
        assert [{group.pid for group in card.groups} for card in cards] == [{first.pid}, {second.pid}]
        assert [card.switches for card in cards] == [1, 1]
