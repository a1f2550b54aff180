"""Uninstalling on a real API server, killed at every single write: the same command finishes it."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.kubernetes.kube import Kube, find_server
from aliquot.cli.cluster.uninstall import packaged_objects
from aliquot.dialects.wire.ownobjects import Identity, identities_in
from aliquot.services.uninstall.sweeper import SweepSettings
from aliquot.services.uninstall.uninstaller import Uninstaller
from testbed import objects
from testbed.client import Refused
from testbed.plane import ControlPlane

SPACE = "aliquot-trial"
SETTINGS = SweepSettings("aliquot/aliquot:1", image_known=True)
NODE = "n1"
FILE = [obj for obj in packaged_objects() if not obj["apiVersion"].startswith("monitoring.")]
NAMES = identities_in(FILE, SPACE)


class Killed(BaseException):
    """As by SIGKILL: nothing below catches it."""


class Mortal(Kube):
    """Dies at its n-th write, before or after that has reached the API server."""

    def __init__(self, kubeconfig: Path, *, dies_at: int | None = None, after: bool = False) -> None:
        super().__init__(find_server(kubeconfig))
        self._dies_at, self._after = dies_at, after
        self.writes = 0

    async def _ask(self, method: str, path: str, *more: Any, **words: Any) -> Any:
        if method == "GET" or "accessreviews" in path:
            return await super()._ask(method, path, *more, **words)
        self.writes += 1
        if self.writes == self._dies_at and not self._after:
            raise Killed
        number = self.writes
        try:
            return await super()._ask(method, path, *more, **words)
        finally:
            if number == self._dies_at:
                raise Killed


async def _uninstall(kube: Kube) -> None:
    uninstaller = Uninstaller(kube, report=lambda *_: None, now=time.monotonic, until=time.monotonic() + 30)
    await uninstaller.note_settings(SPACE, SETTINGS)
    await uninstaller.stop_programs(SPACE)
    await uninstaller.clean_nodes(SETTINGS)
    await uninstaller.delete_objects(SPACE, NAMES)


def _run(plane: ControlPlane, **how: Any) -> None:
    async def all_of_it() -> None:
        async with Mortal(plane.kubeconfig, **how) as kube:
            await _uninstall(kube)

    asyncio.run(all_of_it())


def _install(plane: ControlPlane, folder: Path, *, namespace: bool) -> None:
    """As kubectl does it; without the file's own Namespace where another one is meant."""
    manifest = folder / "install.yaml"
    wanted = [obj for obj in FILE if namespace or obj["kind"] != "Namespace"]
    manifest.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}).replace("aliquot-system", SPACE)
    )
    plane.kubectl("apply", "--server-side", "-f", str(manifest))
    note = {"metadata": {"annotations": {"aliquot.dev/agent": "1"}}}
    plane.kubectl("patch", "node", NODE, "--type=merge", "-p", json.dumps(note))


@pytest.fixture
def bare(clean: ControlPlane) -> Iterator[ControlPlane]:
    """With the namespace there: that of others is not made and deleted, which takes the API server seconds."""
    clean.api("POST", "/api/v1/nodes", objects.node(NODE, {}))
    clean.api("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE, "labels": {"whose": "theirs"}}})
    yield clean
    _run(clean)
    clean.kubectl("delete", "namespace", SPACE, "--ignore-not-found")


def _found(plane: ControlPlane) -> dict[str, Any]:
    """All of ours that is there, and the labels and annotations of the node and the namespace."""
    found = {}
    for which in (*NAMES, Identity("v1", "Node", "", NODE)):
        try:
            metadata = plane.api("GET", which.path)["metadata"]
        except Refused as error:
            if error.status == 404:
                continue
            raise
        found[str(which)] = {key: metadata.get(key) for key in ("labels", "annotations")}
    return found


def test_an_uninstallation_killed_at_any_write_is_finished_by_the_same_command(
    bare: ControlPlane, tmp_path: Path
) -> None:
    nothing = _found(bare)
    for number in itertools.count(1, 2):
        _install(bare, tmp_path, namespace=False)
        try:
            _run(bare, dies_at=number, after=number % 4 > 1)
        except Killed:
            _run(bare)
            assert _found(bare) == nothing, f"killed at write {number}"
        else:
            break
    assert number > 20, "there was something to kill"
    assert _found(bare) == nothing


def test_the_namespace_of_the_file_goes_and_one_of_others_stays_as_it_was(bare: ControlPlane, tmp_path: Path) -> None:
    path = f"/api/v1/namespaces/{SPACE}"
    theirs = bare.api("GET", path)["metadata"]["labels"]
    _install(bare, tmp_path, namespace=False)
    _run(bare)
    assert bare.api("GET", path)["metadata"]["labels"] == theirs
    bare.kubectl("delete", "namespace", SPACE)
    _install(bare, tmp_path, namespace=True)
    labels = bare.api("GET", path)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged", "the agents need it"
    _run(bare)
    with pytest.raises(Refused):
        bare.api("GET", path)
