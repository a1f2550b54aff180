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
from aliquot.services.agent.settings import Settings
from aliquot.services.daemon import home
from kit.clusters.kubectl import invoked


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


class TestOptions:
    def test_agent_defaults_match_help(self, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: "GPU-7")
        settings = ran(started)
        assert settings.node_name == "gpu-7"  # the kubelet writes it small
        assert (settings.cdi, settings.port, settings.release_delay) == (None, 9479, 0.1)
        assert (str(settings.cdi_folder), str(settings.kubelet)) == ("/var/run/cdi", "/var/lib/kubelet")
        assert settings.rules.gpushare_unit is MemoryUnit.GIB
        assert (started.more["playing"], started.more["driver"]) == (None, "auto")
        assert (started.level, started.server and started.server.url) == ("info", "http://environment")

    @pytest.mark.parametrize(
        ("words", "kill_after"),
        [
            ((), None),
            (("--enforce", "report"), None),
            (("--enforce", "kill"), 10.0),
            (("--enforce", "kill", "--enforce-grace", "500ms"), 0.5),
            (("--enforce", "kill", "--enforce-grace", "0"), 0.0),
        ],
    )
    def test_agent_ends_processes_only_if_enforcement_says_so(
        self, started: Started, words: tuple[str, ...], kill_after: float | None
    ) -> None:
        assert ran(started, *words).kill_after == kill_after

    def test_agent_accepts_qgpu_manager_command(
        self, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ["--nodename=gpu-7", f"--dbfile={tmp_path}/qgpu/meta.db", f"--run-dir={tmp_path}/run"]
        monkeypatch.setattr(sys, "argv", ["qgpu-manager", *words])
        with pytest.raises(SystemExit) as end:
            entry.qgpu_manager()
        assert end.value.code == 0
        assert started.settings.node_name == "gpu-7"
        assert started.more["database"] == tmp_path / "qgpu" / "meta.db"

    def test_node_name_from_option_then_environment(self, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NODE_NAME", "from-the-pod")
        assert ran(started).node_name == "from-the-pod"
        assert ran(started, "--nodename", "given").node_name == "given"

    def test_agent_flags_reach_settings(self, started: Started, tmp_path: Path) -> None:
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

    def test_simulate_option_starts_player(self, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        def stand_ins(home: Home, spec: Cards, node: str) -> Playing:
            return Playing(1, 2, spec.cards, spec.memory_mib, home.player_socket)

        monkeypatch.setattr("aliquot.cli.cluster.agent.with_stand_ins", stand_ins)
        assert ran(started, "--simulate", "4x16GiB").simulated == "4x16GiB"
        assert started.more["playing"].cards == 4


class TestFolders:
    def test_run_folders_are_private(self, started: Started, tmp_path: Path) -> None:
        settings = ran(started)
        for folder in (settings.tenants, settings.links):
            assert folder.parent == tmp_path / "run"
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_database_folder_is_created_but_not_changed(self, started: Started, tmp_path: Path) -> None:
        ran(started)
        (tmp_path / "state").chmod(0o1777)
        ran(started)
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o1777

    def test_second_agent_on_run_dir_is_refused(self, started: Started, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        lock = home.take_lock(Home(str(tmp_path / "run"), str(tmp_path)))
        try:
            said = refused(started, code=1)
        finally:
            os.close(lock)
        assert f"pid {os.getpid()}: stop it first" in said
        ran(started)  # the lock went with its holder

    def test_run_dir_that_cannot_be_created_is_reported(self, started: Started, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        said = refused(started, f"--run-dir={tmp_path}/file/run")
        assert said == (
            f"aliquot: {tmp_path}/file/run: Not a directory: choose another folder, for the agent only, with --run-dir"
        )

    def test_database_folder_that_cannot_be_created_is_reported(self, started: Started, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        said = refused(started, f"--dbfile={tmp_path}/file/x/meta.db")
        assert f"{tmp_path}/file/x" in said
        assert "choose another folder with --dbfile" in said

    def test_folders_must_be_host_mounts_in_a_pod(self, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
        def unmounted(folders: Iterable[str]) -> None:
            raise home.StartError(f"{' and '.join(folders)}: mount them")

        monkeypatch.setattr(home, "check_mounted", unmounted)
        run, state = started.words[0].partition("=")[2], Path(started.words[1].partition("=")[2]).parent
        assert refused(started) == f"aliquot: {run} and {state}: mount them"

    def test_non_root_agent_is_advised(self, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1000)
        said = refused(started, f"--run-dir={tmp_path}")
        assert f"belongs to user {owner}: run it as root, or choose another" in said

    def test_run_dir_too_long_for_sockets_is_refused(self, started: Started) -> None:
        said = refused(started, "--run-dir=/run/" + "x" * 60)
        assert "--run-dir: " in said
        assert "is too long for the paths of sockets: at most 54 bytes" in said


class TestErrors:
    @pytest.mark.parametrize(
        ("words", "named"),
        [
            (["--simulate=4"], "--simulate: 4 is not allowed"),
            (["--release-delay=soon"], "--release-delay"),
            (["--ignore-xids=94,ecc"], "94,ecc is not allowed: numbers separated by commas, for example 94,63"),
            (["--ignore-xids=94,,63"], "94,,63 is not allowed"),
            (["--port=99999"], "--port"),
            (["--cdi=maybe"], "'auto', 'on', 'off'"),
            (["--memory-unit=GB"], "'GiB', 'MiB'"),
            (["--driver=mine"], "'auto', 'runtime', 'cdi'"),
            (["--host-pool=much"], "much is not allowed: GiB, or with a unit"),
            (["--host-pool=1000000GiB"], "--host-pool: 1000000 GiB is not allowed: at most "),
            (["--oversubscribe=0.9"], "0.9 is not allowed: 1.0 to 8.0, for example 1.5"),
            (["--oversubscribe=8.1"], "8.1 is not allowed: 1.0 to 8.0, for example 1.5"),
        ],
    )
    def test_invalid_agent_option_names_flag(self, started: Started, words: list[str], named: str) -> None:
        result = invoked(agent, *started.words, *words)
        assert result.exit_code == 2
        assert named in result.stderr
        assert started.settings is None

    def test_agent_without_kubeconfig_is_refused(
        self, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        assert str(tmp_path / "none") in refused(started)
        assert not (tmp_path / "run").exists()  # nothing was begun

    def test_agent_without_gpu_explains_simulate(self, started: Started) -> None:
        started.error = NvmlError("libnvidia-ml.so.1 is not there")
        said = refused(started)
        assert "libnvidia-ml.so.1 is not there" in said
        assert "NVIDIA_VISIBLE_DEVICES=all" in said
        assert "--simulate 4x16GiB" in said

    @pytest.mark.parametrize("error", [StoreError("db: do this"), ShimError("shim: do this"), CdiError("cdi: do this")])
    def test_agent_start_error_is_one_line(self, started: Started, error: Exception) -> None:
        started.error = error
        assert refused(started) == f"aliquot: {error}"

    def test_agent_bind_address_error_is_reported(self, started: Started) -> None:
        started.error = OSError(99, "Cannot assign requested address")
        said = refused(started)
        assert said.startswith(
            "aliquot: cannot listen on 0.0.0.0:9479: Cannot assign requested address; choose another"
        )

    def test_agent_file_error_is_reported(self, started: Started) -> None:
        started.error = PermissionError(13, "Permission denied", "/run/aliquot/state.db")
        assert refused(started) == "aliquot: /run/aliquot/state.db: Permission denied"


class TestHelp:
    def test_agent_help_has_examples(self) -> None:
        said = invoked(agent, "--help").output
        assert "aliquot agent --nodename gpu-7" in said
        assert "qgpu-manager --nodename=gpu-7 --dbfile=" in said

    def test_agent_help_explains_every_flag(self) -> None:
        bare = [param.name for param in agent.params if not getattr(param, "help", "") and param.name != "log_level"]
        assert bare == []

    def test_agent_help_shows_defaults(self) -> None:
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
