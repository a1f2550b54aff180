"""Installing and uninstalling on a real API server, killed at every single write: the same command ends the same."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aliquot
from aliquot.adapters.kubernetes.kube import Kube, find_server
from aliquot.cli.install.options import packaged_objects
from aliquot.cli.install.uninstall import default_objects
from aliquot.dialects.wire.install.deployment import RECORD, Identity, Options, tailor_objects
from aliquot.dialects.wire.install.record import new_record, rollback_target
from aliquot.services.install.clusterobjects import ClusterObjects
from aliquot.services.install.installer import Installer
from aliquot.services.install.rollout import Rollout
from aliquot.services.install.sweeper import SweepSettings
from aliquot.services.install.uninstaller import Uninstaller
from testbed import objects
from testbed.client import Refused
from testbed.plane import ControlPlane

SPACE = "aliquot-trial"
OPTIONS = Options(image="aliquot/aliquot:1", kube_scheduler_image="kube-scheduler:1", namespace=SPACE)
NEXT = Options(image="aliquot/aliquot:2", kube_scheduler_image="kube-scheduler:1", namespace=SPACE, mode="gpushare")
NODE = "n1"
FILE = packaged_objects()
NAMES = default_objects(SPACE)

Work = Callable[[Kube], Coroutine[Any, Any, None]]


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


def _no_report(step: str, text: str) -> None: ...


def _installer(kube: Kube) -> Installer:
    objects = ClusterObjects(kube)
    rollout = Rollout(objects, SPACE, report=_no_report, now=time.monotonic)
    return Installer(objects, rollout, report=_no_report)


async def _install(kube: Kube, options: Options = OPTIONS) -> None:
    installer = _installer(kube)
    known = await installer.objects.record(SPACE)
    wanted = tailor_objects(FILE, options, aliquot.__version__)
    before = None if known is None or (known.settled and known.options == options) else rollback_target(known)
    record = new_record("1", options, wanted, before=before, labelled=known.labelled if known else {})
    record = await installer.apply_all(record, wanted, nodes=[NODE], until=None)
    await installer.settle(record)


async def _back(kube: Kube) -> None:
    installer = _installer(kube)
    record = await installer.objects.record(SPACE)
    assert record is not None
    if not record.settled:
        await installer.roll_back(record)


async def _uninstall(kube: Kube) -> None:
    uninstaller = Uninstaller(kube, report=_no_report, now=time.monotonic, until=time.monotonic() + 30)
    record = await uninstaller.objects.record(SPACE)
    await uninstaller.stop_programs(SPACE)
    await uninstaller.clean_nodes(record.labelled if record else {}, SweepSettings(OPTIONS.image))
    await uninstaller.delete_objects(record, SPACE, NAMES)


def _run(plane: ControlPlane, work: Work, **how: Any) -> int:
    """Answers how many writes it took."""

    async def all_of_it() -> int:
        kube = Mortal(plane.kubeconfig, **how)
        async with kube:
            await work(kube)
        return kube.writes

    return asyncio.run(all_of_it())


@pytest.fixture
def bare(clean: ControlPlane) -> Iterator[ControlPlane]:
    """With the namespace there: that of others is not made and deleted, which takes the API server seconds."""
    clean.api("POST", "/api/v1/nodes", objects.node(NODE, {}))
    clean.api("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE, "labels": {"whose": "theirs"}}})
    yield clean
    _run(clean, _uninstall)
    clean.kubectl("delete", "namespace", SPACE)


def _found(plane: ControlPlane) -> dict[str, Any]:
    """All of ours that is there, as far as it was said by somebody."""
    names = [*NAMES, Identity("v1", "ConfigMap", SPACE, RECORD), Identity("v1", "Node", "", NODE)]
    found = {}
    for which in names:
        try:
            got = plane.api("GET", which.path)
        except Refused as error:
            if error.status == 404:
                continue
            raise
        metadata = {key: got["metadata"].get(key) for key in ("name", "namespace", "labels")}
        if which.kind == "Node":
            found[str(which)] = metadata["labels"]
        elif which.kind == "Secret":  # whose key is nobody's yet
            found[str(which)] = metadata
        else:
            said = {key: got.get(key) for key in ("data", "rules", "subjects")}
            found[str(which)] = {**said, "template": (got.get("spec") or {}).get("template"), "metadata": metadata}
    return found


def test_an_installation_killed_at_any_write_is_finished_by_the_same_command(bare: ControlPlane) -> None:
    writes = _run(bare, _install)
    whole = _found(bare)
    assert len(whole) == len(tailor_objects(FILE, OPTIONS, "1")) + 2, "each of them, the record, and the node"
    _run(bare, _uninstall)
    for number in range(1, writes + 1):
        with pytest.raises(Killed):
            _run(bare, _install, dies_at=number, after=number % 4 > 1)
        _run(bare, _install)
        assert _found(bare) == whole, f"killed at write {number}"
        _run(bare, _uninstall)


def test_an_upgrade_killed_at_any_write_is_finished_by_the_same_command(bare: ControlPlane) -> None:
    for _ in range(2):  # the first of them also labels the node
        _run(bare, _install)
        writes = _run(bare, partial(_install, options=NEXT))
    whole = _found(bare)
    for number in range(1, writes + 1, 3):
        _run(bare, _install)
        with pytest.raises(Killed):
            _run(bare, partial(_install, options=NEXT), dies_at=number, after=number % 4 > 1)
        _run(bare, partial(_install, options=NEXT))
        assert _found(bare) == whole, f"killed at write {number}"


def test_an_upgrade_killed_at_any_write_can_be_rolled_back(bare: ControlPlane) -> None:
    writes = _run(bare, _install)
    whole = _found(bare)
    for number in range(3, writes, 4):
        with pytest.raises(Killed):
            _run(bare, partial(_install, options=NEXT), dies_at=number)
        _run(bare, _back)
        assert _found(bare) == whole, f"killed at write {number}"


def test_an_uninstallation_killed_at_any_write_is_finished_by_the_same_command(bare: ControlPlane) -> None:
    nothing = _found(bare)
    for number in itertools.count(1, 2):
        _run(bare, _install)
        try:
            _run(bare, _uninstall, dies_at=number, after=number % 4 > 1)
        except Killed:
            _run(bare, _uninstall)
            assert _found(bare) == nothing, f"killed at write {number}"
        else:
            break
    assert number > 20, "there was something to kill"
    assert _found(bare) == nothing


def test_a_namespace_that_was_made_goes_and_one_of_others_stays_as_it_was(bare: ControlPlane) -> None:
    _run(bare, _install)
    labels = bare.api("GET", f"/api/v1/namespaces/{SPACE}")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged", "the agents need it"
    _run(bare, _uninstall)
    assert bare.api("GET", f"/api/v1/namespaces/{SPACE}")["metadata"]["labels"] == {
        "whose": "theirs",
        "kubernetes.io/metadata.name": SPACE,
    }
    bare.kubectl("delete", "namespace", SPACE)
    _run(bare, _install)
    _run(bare, _uninstall)
    with pytest.raises(Refused):
        bare.api("GET", f"/api/v1/namespaces/{SPACE}")
    bare.api("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})


def test_labels_of_pod_security_that_a_namespace_had_come_back(bare: ControlPlane) -> None:
    """Killed anywhere in between, too: the namespace must not be left without its owner's rule."""
    path, enforce = f"/api/v1/namespaces/{SPACE}", "pod-security.kubernetes.io/enforce"
    bare.kubectl("label", "namespace", SPACE, f"{enforce}=restricted", f"{enforce}-version=v1.36")
    theirs = bare.api("GET", path)["metadata"]["labels"]
    for work in (_install, partial(_install, options=NEXT)):  # the second time the labels are ours already
        _run(bare, work)
        assert bare.api("GET", path)["metadata"]["labels"][enforce] == "privileged"

    async def unchanged(kube: Kube) -> None:
        wanted = tailor_objects(FILE, NEXT, aliquot.__version__)
        namespace = next(obj for obj in wanted if obj["kind"] == "Namespace")
        installer = _installer(kube)
        assert await installer.objects.difference(await installer.own_part(namespace)) == "unchanged"

    _run(bare, unchanged)
    last = _run(bare, _uninstall)
    assert bare.api("GET", path)["metadata"]["labels"] == theirs
    for dies_at in (last - 1, last):
        _run(bare, _install)
        with pytest.raises(Killed):
            _run(bare, _uninstall, dies_at=dies_at)
        _run(bare, _uninstall)
        after = bare.api("GET", path)["metadata"]
        assert (after["labels"], after.get("annotations")) == (theirs, None)
