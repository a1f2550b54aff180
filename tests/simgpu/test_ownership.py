"""The objects of a card belong to the open file, as long as a process holds it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time

import pytest

from simgpu.rig import INVALID_CLIENT, OK, Player, RmFile, wait_until

MIB = 1 << 20


def test_another_connection_may_not_touch_them(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    group = tenant.group()
    stranger = RmFile(player, player.open())
    assert stranger.set_slice(group, 1) == INVALID_CLIENT
    assert stranger.pause(group) == INVALID_CLIENT
    assert tenant.rm_file().set_slice(group, 1) == OK
    stranger.close()


def test_a_file_passed_on_works_from_another_process_with_plain_ioctl(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    file = tenant.rm_file()
    group = tenant.group()
    daemon = player.start("control_as_a_daemon")
    order = {"us": 4321, "client": group.client, "group": group.group}
    socket.send_fds(daemon.link, [json.dumps(order).encode()], [file.fd])
    assert daemon.result() == [OK]
    assert tenant.group().slice_us == 4321


def test_both_holders_may_ask_at_once(player: Player) -> None:
    """Each request brings its own way back: the answers of two processes on one socket never mix."""
    tenant = player.start("serve")
    tenant.hear()
    file = tenant.rm_file()
    group = tenant.group()
    for us in range(1, 200):
        tenant.say({"do": "allocate", "mib": 1})
        assert file.set_slice(group, us) == OK
        assert file.get_slice(group) == us
        assert tenant.hear() == 0


def test_death_frees_memory_and_groups(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    assert tenant.ask({"do": "allocate", "mib": 5000}) == 0
    tenant.ask({"do": "launch", "us": 1_000_000, "count": 100})
    assert player.card().used > 5000 * MIB
    tenant.kill()
    wait_until(lambda: not player.card().groups, "its groups are gone")
    assert player.card().used == 0


def test_a_dup_held_elsewhere_keeps_them(player: Player) -> None:
    """As with the real driver: a daemon that forgets to close its dup keeps the dead alive."""
    tenant = player.start("serve")
    tenant.hear()
    file = tenant.rm_file()
    tenant.ask({"do": "launch", "us": 20_000, "count": 100})
    tenant.kill()
    time.sleep(0.05)
    group = tenant.group()
    assert player.card().used > 0
    assert file.pause(group) == OK
    time.sleep(0.01)
    assert player.shares([tenant], 0.05) == [0]
    file.resume(group)
    assert player.shares([tenant], 0.05) == pytest.approx([1], abs=0.001)
    file.close()
    wait_until(lambda: not player.card().groups, "its groups are gone")
    assert player.card().used == 0


def test_a_stopped_process_disturbs_no_other(player: Player) -> None:
    """Its queued work goes on, as on a real card; then the card is the other's."""
    hung, other = player.start("serve"), player.start("serve")
    for tenant in (hung, other):
        assert tenant.hear() == "ready"
    hung.ask({"do": "launch", "us": 1000, "count": 50})
    os.kill(hung.pid, signal.SIGSTOP)
    other.ask({"do": "launch", "us": 10_000, "count": 100})
    wait_until(lambda: hung.group().queued == 0, "what the hung one had queued is done")
    assert hung.group().busy_ns == 50_000_000
    assert player.shares([hung, other], 0.1) == pytest.approx([0, 1], abs=0.001)
    os.kill(hung.pid, signal.SIGCONT)
    hung.ask({"do": "synchronize"})
    assert hung.ask({"do": "allocate", "mib": 10}) == 0


def test_many_deaths_at_any_moment_leak_nothing(player: Player) -> None:
    for pause in range(12):
        tenants = [player.start("serve") for _ in range(2)]
        tenants[0].hear()
        tenants[0].say({"do": "allocate", "mib": 100})
        tenants[0].say({"do": "launch", "us": 5000, "count": 100})
        tenants[0].say({"do": "synchronize"})
        time.sleep(pause * 0.002)
        for tenant in tenants:
            tenant.kill()
    wait_until(lambda: not player.card().groups, "all groups are gone")
    assert player.card().used == 0


def test_programs_fail_when_the_simulation_is_ended() -> None:
    """Within about a second, instead of waiting for the next player."""
    ending = Player("--memory", "8192")
    tenant = ending.start("serve")
    tenant.hear()
    tenant.ask({"do": "launch", "us": 60_000_000})
    tenant.say({"do": "attempt", "call": "cuCtxSynchronize"})
    time.sleep(0.05)
    os.unlink(ending.socket)
    ending.crash()
    assert tenant.hear() == 46
    assert tenant.ask({"do": "allocate", "mib": 1}) == 46
    tenant.kill()
    shutil.rmtree(ending.folder)


def test_a_player_whose_input_ends_leaves_nothing() -> None:
    player = Player("--memory", "8192")
    tenant = player.start("serve")
    tenant.hear()
    assert player.close() == 0
    assert player.left == []
    tenant.kill()
