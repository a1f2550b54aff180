"""The process that plays the simulated cards: one per home, outliving those who start it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.player import PlayerError
from aliquot.adapters.host import processes
from aliquot.adapters.host.home import Home


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


def test_a_second_start_finds_the_first(home: Home) -> None:
    first = player.play(home, 2, 24576)
    assert first.spec == "2x24GiB"
    assert processes.lives(first.pid, first.started)
    assert player.play(home, 2, 24576) == first == player.playing(home)


def test_other_cards_than_those_that_are_simulated_are_refused_with_how_to_end_these(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    player.play(home, 2, 24576)
    elsewhere = f"2x24GiB are simulated here already: `ALIQUOT_HOME={home.run} aliquot down` ends them"
    with pytest.raises(PlayerError, match=elsewhere):
        player.play(home, 1, 24576)
    monkeypatch.setenv("ALIQUOT_HOME", home.run)
    with pytest.raises(PlayerError, match="2x24GiB are simulated here already: `aliquot down` ends them"):
        player.play(home, 1, 24576)


def test_it_ends_when_it_is_told_to_and_a_new_one_may_come(home: Home) -> None:
    first = player.play(home, 1, 1536)
    assert first.spec == "1x1536MiB"
    assert player.end(home)
    assert not processes.lives(first.pid, first.started)
    assert player.playing(home) is None
    assert not player.end(home)
    assert player.play(home, 2, 8192).pid != first.pid


@pytest.mark.parametrize("script", ["exit 1", "echo no cards; exit 1", "exec >&-; exec sleep 600"])
def test_one_that_does_not_come_up_is_told_and_leaves_nothing(home: Home, script: str) -> None:
    put(Path(player.simulation()) / "player", script)
    with pytest.raises(PlayerError, match="did not come up"):
        player.play(home, 1, 8192)
    assert player.playing(home) is None


def test_one_that_cannot_be_written_down_does_not_stay(home: Home) -> None:
    Path(home.player).mkdir()
    put(Path(player.simulation()) / "player", f"echo $$ > {home.run}/pid; echo ready; exec sleep 600 >/dev/null")
    with pytest.raises(PlayerError, match=r"player\.json: Is a directory"):
        player.play(home, 1, 8192)
    assert not processes.lives(int(Path(home.run, "pid").read_text()), None)
    Path(home.player).rmdir()


def test_one_that_is_not_built_says_how(home: Home) -> None:
    (Path(player.simulation()) / "player").unlink()
    with pytest.raises(PlayerError, match="build it with `make native`"):
        player.play(home, 1, 8192)


def test_nonsense_in_its_place_is_nobody(home: Home) -> None:
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
