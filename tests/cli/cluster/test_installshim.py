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


def test_the_shim_is_put_where_the_host_finds_it_and_twice_is_as_good_as_once(tmp_path: Path) -> None:
    first, second = run("--host-root", str(tmp_path)), run("--host-root", str(tmp_path))
    assert (first.exit_code, second.exit_code) == (0, 0)
    (folder,) = (tmp_path / "var/lib/aliquot/shim").glob("[0-9]*")
    there = f"/var/lib/aliquot/shim/{folder.name}"  # as the host names it
    assert first.stdout == f"{there}: installed, and is what new containers get\n"
    assert second.stdout == f"{there}: is there already, and is what new containers get\n"
    assert (folder / "libaliquot.so").read_bytes()[:4] == b"\x7fELF"


def test_it_goes_where_it_is_told(tmp_path: Path) -> None:
    assert run("--host-root", str(tmp_path), "--to", "/opt/aliquot").exit_code == 0
    assert (tmp_path / "opt/aliquot/shim/current/libaliquot.so").exists()


def test_a_root_that_is_not_mounted_is_told_and_not_made(tmp_path: Path) -> None:
    done = run("--host-root", str(tmp_path / "host"))
    assert done.exit_code == 2
    assert "host is not there: mount the host's root folder" in done.stderr
    assert not (tmp_path / "host").exists()


def test_a_relative_path_is_refused(tmp_path: Path) -> None:
    done = run("--host-root", str(tmp_path), "--to", "var/lib")
    assert done.exit_code == 2
    assert '--to: "var/lib" is not allowed: a path from the root of the host' in done.stderr


def test_a_link_of_the_host_that_leads_elsewhere_in_the_container_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "var").symlink_to("/data/var")
    done = run("--host-root", str(tmp_path / "host"))
    assert done.exit_code == 2
    assert "leads out of" in done.stderr


def test_the_script_of_the_init_container_calls_it(tmp_path: Path) -> None:
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
