"""`aliquot agent`: the vendor's own line taken as it stands, and every slip named with what to do."""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot import __main__ as entry
from aliquot.adapters.gpu.nvml import NvmlError
from aliquot.adapters.gpu.player import Playing
from aliquot.adapters.host.home import Home
from aliquot.adapters.kubernetes.kube import Server
from aliquot.adapters.storage.cdifolder import CdiError
from aliquot.adapters.storage.database import StoreError
from aliquot.adapters.storage.shims import ShimError
from aliquot.cli.amounts import Cards
from aliquot.cli.cluster.agent import agent
from aliquot.dialects import MemoryUnit
from aliquot.services.agent.service import Settings
from aliquot.services.daemon import home
from kit.kubectl import invoked


class Started:
    """What would have been started."""

    def __init__(self, folder: Path) -> None:
        self.words = [f"--run-dir={folder / 'run'}", f"--dbfile={folder / 'state' / 'meta.db'}"]
        self.server: Server | None = None
        self.settings: Any = None
        self.more: dict[str, Any] = {}
        self.level = ""
        self.error: Exception | None = None

    def run(self, server: Server, settings: Settings, **more: Any) -> None:
        self.server, self.settings, self.more = server, settings, more
        if self.error is not None:
            raise self.error


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """With a short name: that of a unix socket has no more than 107 characters."""
    with tempfile.TemporaryDirectory(prefix="agent-") as name:
        yield Path(name)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """A node with a kubeconfig, on which an agent is not started but noted."""
    found = Started(tmp_path)
    monkeypatch.setattr("aliquot.services.agent.assembly.run_agent", found.run)
    monkeypatch.setattr("aliquot.adapters.host.logs.start_logging", lambda level: setattr(found, "level", level))
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://environment"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("NODE_NAME", raising=False)
    return found


def ran(started: Started, *words: str) -> Settings:
    result = invoked(agent, *started.words, *words)
    assert (result.exit_code, result.output) == (0, "")
    settings: Settings = started.settings
    return settings


def refused(started: Started, *words: str, code: int = 2) -> str:
    result = invoked(agent, *started.words, *words)
    assert result.exit_code == code
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr.strip()


class TestWhatItIsTold:
    def test_without_a_word_everything_is_as_the_help_says(
        self, started: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: "GPU-7")
        settings = ran(started)
        assert settings.node_name == "gpu-7"  # the kubelet writes it small
        assert (settings.cdi, settings.port, settings.release_delay) == (None, 9479, 0.1)
        assert (str(settings.cdi_folder), str(settings.kubelet)) == ("/var/run/cdi", "/var/lib/kubelet")
        assert settings.rules.gpushare_unit is MemoryUnit.GIB
        assert (started.more["playing"], started.more["driver"]) == (None, "auto")
        assert (started.level, started.server and started.server.url) == ("info", "http://environment")

    def test_the_vendors_own_line_is_taken_as_it_stands(
        self, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ["--nodename=gpu-7", f"--dbfile={tmp_path}/qgpu/meta.db", f"--run-dir={tmp_path}/run"]
        monkeypatch.setattr(sys, "argv", ["qgpu-manager", *words])
        with pytest.raises(SystemExit) as end:
            entry.qgpu_manager()
        assert end.value.code == 0
        assert started.settings.node_name == "gpu-7"
        assert started.more["database"] == tmp_path / "qgpu" / "meta.db"

    def test_a_node_is_named_by_the_command_line_then_by_the_pods_environment(
        self, started: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NODE_NAME", "from-the-pod")
        assert ran(started).node_name == "from-the-pod"
        assert ran(started, "--nodename", "given").node_name == "given"

    def test_every_flag_arrives(self, started: Started, tmp_path: Path) -> None:
        settings = ran(
            started,
            "--cdi=off",
            f"--cdi-dir={tmp_path}/cdi",
            f"--kubelet-dir={tmp_path}/kubelet",
            "--driver=cdi",
            "--memory-unit=MiB",
            "--release-delay=0",
            "--ignore-xids=94, 63",
            "--port=0",
            "--bind-address=127.0.0.1",
            "--log-level=debug",
        )
        assert (settings.cdi, settings.cdi_folder, settings.kubelet) == (False, tmp_path / "cdi", tmp_path / "kubelet")
        assert (settings.port, settings.bind_address, settings.release_delay) == (0, "127.0.0.1", 0.0)
        assert settings.rules.gpushare_unit is MemoryUnit.MIB
        assert (started.more["driver"], started.level) == ("cdi", "debug")
        assert started.more["ignored_xids"] == {94, 63}

    def test_simulated_cards_are_played_and_said(self, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        def stand_ins(home: Home, spec: Cards) -> Playing:
            return Playing(1, 2, spec.cards, spec.memory_mib, home.player_socket)

        monkeypatch.setattr("aliquot.cli.cluster.agent.with_stand_ins", stand_ins)
        assert ran(started, "--simulate", "4x16GiB").simulated == "4x16GiB"
        assert started.more["playing"].cards == 4


class TestItsFolders:
    def test_who_has_nothing_mounted_of_them_looks_into_none(self, started: Started, tmp_path: Path) -> None:
        settings = ran(started)
        for folder in (settings.tenants, settings.links):
            assert folder.parent == tmp_path / "run"
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_the_folder_of_the_database_is_made_but_never_changed(self, started: Started, tmp_path: Path) -> None:
        ran(started)
        (tmp_path / "state").chmod(0o1777)
        ran(started)
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o1777

    def test_they_are_one_agents_alone(self, started: Started, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        lock = home.take_lock(Home(str(tmp_path / "run"), str(tmp_path)))
        try:
            said = refused(started, code=1)
        finally:
            os.close(lock)
        assert f"pid {os.getpid()}: stop it first" in said
        ran(started)  # the lock went with its holder

    def test_one_that_cannot_be_made_is_named_with_the_flag_that_names_another(
        self, started: Started, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        said = refused(started, f"--run-dir={tmp_path}/file/run")
        assert said == (
            f"aliquot: {tmp_path}/file/run: Not a directory: name another with --run-dir, one that is the agent's alone"
        )

    def test_so_is_that_of_the_database(self, started: Started, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        said = refused(started, f"--dbfile={tmp_path}/file/x/meta.db")
        assert f"{tmp_path}/file/x" in said
        assert "name another with --dbfile" in said

    def test_in_a_pod_they_must_be_the_hosts(self, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        def unmounted(folders: Iterable[str]) -> None:
            raise home.StartError(f"{' and '.join(folders)}: mount them")

        monkeypatch.setattr(home, "check_mounted", unmounted)
        run, state = started.words[0].partition("=")[2], Path(started.words[1].partition("=")[2]).parent
        assert refused(started) == f"aliquot: {run} and {state}: mount them"

    def test_who_is_not_root_is_told_so(
        self, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        (tmp_path / "file").touch()
        assert "run it as root, or name another" in refused(started, f"--run-dir={tmp_path}/file/run")

    def test_one_too_deep_for_sockets_is_refused_before_any_pod_is(self, started: Started) -> None:
        said = refused(started, "--run-dir=/run/" + "x" * 60)
        assert "--run-dir: " in said
        assert "is too long: 54 bytes at most" in said


class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        ("words", "named"),
        [
            (["--simulate=4"], "--simulate: 4 is not allowed"),
            (["--release-delay=soon"], "--release-delay"),
            (["--ignore-xids=94,ecc"], "94,ecc is not allowed: numbers of Xids, separated by commas, as in 94,63"),
            (["--ignore-xids=94,,63"], "94,,63 is not allowed"),
            (["--port=99999"], "--port"),
            (["--cdi=maybe"], "'auto', 'on', 'off'"),
            (["--memory-unit=GB"], "'GiB', 'MiB'"),
            (["--driver=mine"], "'auto', 'runtime', 'cdi'"),
        ],
    )
    def test_a_value_that_is_not_allowed_is_named_with_its_flag(
        self, started: Started, words: list[str], named: str
    ) -> None:
        result = invoked(agent, *started.words, *words)
        assert result.exit_code == 2
        assert named in result.stderr
        assert started.settings is None

    def test_no_cluster_to_talk_to(self, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        assert str(tmp_path / "none") in refused(started)
        assert not (tmp_path / "run").exists()  # nothing was begun

    def test_no_card_says_what_the_container_lacks_and_how_to_try_without(self, started: Started) -> None:
        started.error = NvmlError("libnvidia-ml.so.1 is not there")
        said = refused(started)
        assert "libnvidia-ml.so.1 is not there" in said
        assert "NVIDIA_VISIBLE_DEVICES=all" in said
        assert "--simulate 4x16GiB" in said

    @pytest.mark.parametrize("error", [StoreError("db: do this"), ShimError("shim: do this"), CdiError("cdi: do this")])
    def test_what_its_parts_say_is_passed_on_in_one_line(self, started: Started, error: Exception) -> None:
        started.error = error
        assert refused(started) == f"aliquot: {error}"

    def test_an_address_that_is_not_the_nodes(self, started: Started) -> None:
        started.error = OSError(99, "Cannot assign requested address")
        said = refused(started)
        assert said.startswith("aliquot: cannot listen on 0.0.0.0:9479: Cannot assign requested address; name another")

    def test_a_file_that_cannot_be_used_is_no_port(self, started: Started) -> None:
        started.error = PermissionError(13, "Permission denied", "/run/aliquot/player.sock")
        assert refused(started) == "aliquot: /run/aliquot/player.sock: Permission denied"


class TestTheHelp:
    def test_it_says_what_the_agent_does_and_how_it_is_started(self) -> None:
        said = invoked(agent, "--help").output
        assert "aliquot agent --nodename gpu-7" in said
        assert "qgpu-manager --nodename=gpu-7 --dbfile=" in said

    def test_every_flag_is_explained(self) -> None:
        bare = [param.name for param in agent.params if not getattr(param, "help", "") and param.name != "log_level"]
        assert bare == []

    def test_every_default_is_said(self) -> None:
        said = " ".join(invoked(agent, "--help").output.split())
        for default in (
            "/var/lib/aliquot/state.db",
            "/run/aliquot",
            "/var/lib/kubelet",
            "/var/run/cdi",
            "9479",
            "100ms",
        ):
            assert f"[default: {default}" in said
        assert "$NODE_NAME" in said
