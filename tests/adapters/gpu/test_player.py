"""The process that plays the simulated cards: one per home, outliving those who start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.player import PlayerError
from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from kit.running.scarcefiles import scarce_files


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home, and a program of straw in the place of the player."""
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        program = Path(folder) / "lib" / "simgpu" / "player"
        program.parent.mkdir(parents=True)
        monkeypatch.setattr(player, "library", lambda: Path(folder) / "lib")
        put(program, "echo ready; exec sleep 600 >/dev/null")
        home = Home(folder, folder)
        yield home
        player.end(home)


def put(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_play_finds_the_running_player(home: Home) -> None:
    first = player.play(home, 2, 24576)
    assert first.spec == "2x24GiB"
    assert processes.lives(first.pid, first.started)
    assert player.play(home, 2, 24576) == first == player.playing(home)


def test_play_refuses_other_cards_than_the_running_players_with_the_fix(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    player.play(home, 2, 24576)
    elsewhere = f"2x24GiB are simulated here already: `ALIQUOT_HOME={home.run} aliquot down` ends them"
    with pytest.raises(PlayerError, match=elsewhere):
        player.play(home, 1, 24576)
    monkeypatch.setenv("ALIQUOT_HOME", home.run)
    with pytest.raises(PlayerError, match="2x24GiB are simulated here already: `aliquot down` ends them"):
        player.play(home, 1, 24576)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of several users")
def test_what_another_user_wrote_of_a_player_ends_no_process_that_they_could_not(home: Home) -> None:
    """Root may ask any user's daemon to end (`aliquot down`): a forged player.json had root kill any process."""
    for uid in (0, 65534):
        with subprocess.Popen(["sleep", "600"], user=uid) as victim:
            started = processes.start_time(victim.pid)
            assert started is not None
            forged = player.Playing(victim.pid, started, 1, 1024, "/x", boot=player._boot())
            Path(home.player).write_text(json.dumps(forged._asdict()))
            os.chown(home.player, 65534, 65534)
            os.chown(home.run, 65534, 65534)
            try:
                assert player.known(home) is None
                player.end(home)
                assert (victim.poll() is None) == (uid == 0)
            finally:
                os.chown(home.run, 0, 0)
                victim.kill()


def test_pipe_in_the_place_of_what_is_known_of_a_player_blocks_nobody(home: Home) -> None:
    os.mkfifo(home.player)
    assert player.known(home) is None


def test_player_end_allows_a_new_player(home: Home) -> None:
    first = player.play(home, 1, 1536)
    assert first.spec == "1x1536MiB"
    assert player.end(home)
    assert not processes.lives(first.pid, first.started)
    assert player.playing(home) is None
    assert not player.end(home)
    assert player.play(home, 2, 8192).pid != first.pid


@pytest.mark.parametrize("script", ["exit 1", "echo no cards; exit 1", "exec >&-; exec sleep 600"])
def test_play_reports_a_player_that_does_not_start_and_leaves_nothing(home: Home, script: str) -> None:
    put(Path(player.simulation()) / "player", script)
    with pytest.raises(PlayerError, match="did not come up"):
        player.play(home, 1, 8192)
    assert player.playing(home) is None


def test_play_ends_a_player_whose_file_cannot_be_written(home: Home) -> None:
    Path(home.player).mkdir()
    put(Path(player.simulation()) / "player", f"echo $$ > {home.run}/pid; echo ready; exec sleep 600 >/dev/null")
    with pytest.raises(PlayerError, match=r"player\.json: Is a directory"):
        player.play(home, 1, 8192)
    assert not processes.lives(int(Path(home.run, "pid").read_text()), None)
    Path(home.player).rmdir()


def test_keep_starts_the_next_player_until_the_simulation_is_ended(home: Home) -> None:
    first = player.play(home, 2, 24576)
    player.keep(home, first)
    os.kill(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (found := player.playing(home)) is None or found.pid == first.pid:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert found.spec == first.spec
    player.end(home)
    while any(thread.name == "player" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert player.known(home) is None


def test_player_is_not_taken_for_ended_while_no_file_is_left(home: Home) -> None:
    found = player.play(home, 1, 8192)
    with scarce_files(0), pytest.raises(OSError, match="Too many open files"):
        player.known(home)
    assert player.known(home) == found


def test_a_player_of_another_boot_is_not_known(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    player.play(home, 2, 24576)
    with monkeypatch.context() as later:
        later.setattr(player, "_boot", lambda: "the next")
        assert player.known(home) is None
    assert player.known(home) is not None


def test_uuids_differ_between_nodes_and_stay_the_same(home: Home) -> None:
    def seed(node: str | None, at: Home = home) -> str:
        return player.command(at, 1, 1024, node)[-1]

    seeds = [seed("n1"), seed("n2"), seed(None), seed(None, Home("/elsewhere", "/elsewhere"))]
    assert len(set(seeds)) == 4
    assert seeds[:3] == [seed("n1"), seed("n2"), seed(None)]
    assert seed("n1", Home("/elsewhere", "/elsewhere")) == seed("n1")


def test_play_says_how_to_build_a_missing_player(home: Home) -> None:
    (Path(player.simulation()) / "player").unlink()
    with pytest.raises(PlayerError, match="build it with `make native`"):
        player.play(home, 1, 8192)


def test_playing_ignores_an_unreadable_player_file(home: Home) -> None:
    for text in ("", "[]", "{}", '{"pid": 1}', "nonsense"):
        Path(home.player).write_text(text)
        assert player.playing(home) is None


def test_libraries_whose_path_ld_preload_cannot_spell_get_another_name(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert player.preloadable(home) == player.library()
    odd = Path(home.run) / "a folder: with blanks"
    odd.mkdir()
    monkeypatch.setattr(player, "library", lambda: odd)
    found = Path(home.run) / "lib2"
    (Path(home.run) / "lib").rename(found)  # the name is taken in this test
    assert player.preloadable(home).resolve() == odd.resolve()
    assert player.preloadable(home) == Path(home.run) / "lib"  # and again
    with pytest.raises(PlayerError, match="LD_PRELOAD"):
        player.preloadable(Home(str(odd), str(odd)))
