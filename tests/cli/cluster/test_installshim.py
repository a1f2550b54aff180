"""`aliquot install-shim`, as an init container runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from aliquot.cli.cluster.installshim import install_shim

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(install_shim, arguments)


def test_install_shim_is_idempotent(tmp_path: Path) -> None:
    first, second = run("--host-root", str(tmp_path)), run("--host-root", str(tmp_path))
    assert (first.exit_code, second.exit_code) == (0, 0)
    (folder,) = (tmp_path / "var/lib/aliquot/shim").glob("[0-9]*")
    there = f"/var/lib/aliquot/shim/{folder.name}"  # as the host names it
    assert first.stdout == f"{there}: installed; new containers use it\n"
    assert second.stdout == f"{there}: already installed; new containers use it\n"
    assert (folder / "libaliquot.so").read_bytes()[:4] == b"\x7fELF"


def test_install_shim_to_other_folder(tmp_path: Path) -> None:
    assert run("--host-root", str(tmp_path), "--to", "/opt/aliquot").exit_code == 0
    assert (tmp_path / "opt/aliquot/shim/current/libaliquot.so").exists()


def test_install_shim_refuses_missing_host_root(tmp_path: Path) -> None:
    done = run("--host-root", str(tmp_path / "host"))
    assert done.exit_code == 2
    assert "host does not exist: mount the host's root folder" in done.stderr
    assert not (tmp_path / "host").exists()


def test_install_shim_refuses_relative_path(tmp_path: Path) -> None:
    done = run("--host-root", str(tmp_path), "--to", "var/lib")
    assert done.exit_code == 2
    assert '--to: "var/lib" is not allowed: an absolute path on the host' in done.stderr


def test_install_shim_refuses_link_out_of_host_root(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "var").symlink_to("/data/var")
    done = run("--host-root", str(tmp_path / "host"))
    assert done.exit_code == 2
    assert "is a link that leaves" in done.stderr


def test_init_container_script_calls_install_shim(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "host").mkdir()
    command = tmp_path / "bin" / "aliquot"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m aliquot "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "HOST_ROOT": str(tmp_path / "host")}
    done = subprocess.run(
        [ROOT / "deploy" / "install.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "host/var/lib/aliquot/shim/current/ld.so.preload").exists()
