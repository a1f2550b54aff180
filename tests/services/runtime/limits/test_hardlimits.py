"""Limits that the driver itself enforces, on the cgroups of Pods: a folder for the cgroup, a played driver."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from aliquot.adapters.gpu.nvml import NvmlError
from aliquot.arbiter.overuse import MARGIN
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Tenant
from aliquot.services.runtime.limits import audit
from aliquot.services.runtime.limits.hardlimits import HardLimits
from kit.cards.arbiterd import UUIDS, Rig, until
from kit.running.logged import logged

GIB = 1 << 30
POD, FOREIGN = "3f2a9c1e-8d47", "77777777-8d47"


class Driver:
    """Sets limits, or says why not."""

    def __init__(self) -> None:
        self.limits: dict[tuple[str, str], int] = {}
        self.why: str | None = None
        self.calls = 0

    def set_limit(self, uuid: str, cgroup: str, limit: int) -> str | None:
        self.calls += 1
        if self.why == "lost":
            raise NvmlError("GPU-0: the card is lost")
        if self.why is None:
            self.limits[uuid, cgroup] = limit
        return self.why


def cgroups() -> dict[str, Path]:
    return {uid: Path("/cg", uid) for uid in (POD, FOREIGN)}


def tenant(uid: str = POD, *allotments: Allotment) -> Tenant:
    return Tenant(uid, f"default/{uid[:4]}", AppClass.NORMAL, allotments or (Allotment("GPU-0", 4 * GIB),), None)


def test_limit_of_each_card_is_set_once_on_the_pods_cgroup() -> None:
    driver = Driver()
    limits = HardLimits(driver.set_limit, cgroups)
    pod = tenant(POD, Allotment("GPU-0", 4 * GIB), Allotment("GPU-1", 2 * GIB), Allotment("GPU-2"))
    for second in range(100):
        limits.refresh([pod], float(second))
    assert driver.limits == {("GPU-0", f"/cg/{POD}"): 4 * GIB + MARGIN, ("GPU-1", f"/cg/{POD}"): 2 * GIB + MARGIN}
    assert driver.calls == 2
    assert limits.enforces(POD, "GPU-0")
    assert not limits.enforces(POD, "GPU-2"), "a card of its own has no limit"
    limits.refresh([], 100.0)
    assert not limits.enforces(POD, "GPU-0")


@pytest.mark.parametrize("why", ["the driver is older than r615", "lost"])
def test_driver_that_does_not_limit_is_asked_seldom_and_logged_once(why: str, caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()
    driver.why = why
    limits = HardLimits(driver.set_limit, cgroups)
    with caplog.at_level(logging.INFO):
        for second in range(1000):
            limits.refresh([tenant(), tenant(FOREIGN)], float(second))
    assert driver.calls == 4
    assert [key for key, _ in logged(caplog)] == ["driver_limits_no_memory"]
    assert not limits.enforces(POD, "GPU-0")
    driver.why = None
    limits.refresh([tenant()], 1200.0)
    assert limits.enforces(POD, "GPU-0")


def test_pod_whose_cgroup_cannot_be_seen_is_left_to_the_shim() -> None:
    driver = Driver()
    limits = HardLimits(driver.set_limit, dict)
    limits.refresh([tenant()], 0.0)
    assert (driver.calls, limits.enforces(POD, "GPU-0")) == (0, False)


def test_pods_cgroups_are_looked_for_once_for_all_pods() -> None:
    driver, walks, seen = Driver(), 0, dict[str, Path]()

    def folders() -> dict[str, Path]:
        nonlocal walks
        walks += 1
        return seen

    limits = HardLimits(driver.set_limit, folders)
    pods = [tenant(f"{number:08}-8d47") for number in range(64)]
    for second in range(64):  # the Pods come one after the other
        limits.refresh(pods[: second + 1], float(second))
    before = walks
    for second in range(64, 124):
        limits.refresh(pods, float(second))
    assert walks - before == 2
    seen = {pod.id: Path("/cg", pod.id) for pod in pods}
    for second in range(124, 1000):
        limits.refresh(pods, float(second))
    assert walks - before == 3
    assert driver.calls == 64, "a cgroup that is seen at last gets its limit, once"


def test_arbiter_shows_the_drivers_limit_and_leaves_pods_of_other_plugins_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_EVERY", 0.01)
    driver = Driver()
    rig = Rig(tmp_path, monkeypatch, whose=lambda pid: POD if pid == os.getpid() else None)
    try:
        rig.daemon._hard_limits = HardLimits(driver.set_limit, cgroups)
        for uid in (POD, FOREIGN):
            rig.daemon.add(tenant(uid, Allotment(UUIDS[0], 4 * GIB)), rig.folder / "t" / uid)
        assert not rig.standing(POD).hard_limit, "before it is known whom to spare"
        rig.daemon.spare(frozenset({FOREIGN}))
        until(lambda: rig.standing(POD).hard_limit, "the driver's limit")
        assert not rig.standing(FOREIGN).hard_limit
    finally:
        rig.end()
