"""How a container gets to its tenant's folder: by CDI, or by mounts that the kubelet itself passes on.

    with CDI      allocate answers a device name; lead writes the spec of that name: environment, shim, folder, driver
    without CDI   allocate answers the mounts, of a folder named by the devices; lead makes that name a link to the
                  tenant's. The environment comes from annotations by the webhook (fieldRef)

Both are undone when the Pod is gone, not when the container has started: a container that restarts while the kubelet
does not know us (it was restarted itself) finds them as they were.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.dialects.wire.admission import reads_environment
from aliquot.dialects.wire.cdi import name_of
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.edits import Edits, Mount, Spec
from aliquot.model.podtenancy import PodTenancy
from aliquot.services.agent.deviceplugins import Allocation, Refused

# Inside the container.
TENANT = "/run/aliquot/tenant"
PRELOAD = "/etc/ld.so.preload"


@dataclass(frozen=True, slots=True)
class Place:
    """A container of a tenant: the cards that are its own, and the environment it was promised."""

    tenancy: PodTenancy
    container: str
    cards: tuple[str, ...]  # UUIDs
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Libraries:
    """What every container gets: the shim and whatever stands in for a driver; `driver` is what its cards need."""

    mounts: tuple[Mount, ...]
    env: Mapping[str, str]
    driver: Callable[[Sequence[str]], Edits]  # by the UUIDs of its cards


class Injector(Protocol):
    """One of the two."""

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation: ...
    def inject(self, resource: str, ids: frozenset[str], place: Place, pod: PodObject) -> None: ...
    def remove(self, uid: str) -> None: ...
    def owners(self) -> dict[str, str]: ...


class CdiInjector:
    """With CDI."""

    def __init__(self, folder: CdiFolder, tenants: Path, libraries: Libraries) -> None:
        self._folder, self._tenants, self._libraries = folder, tenants, libraries
        # A node without CDI has no such folder; where it is wanted and missing, writing says so.
        self._names = {spec.name: spec.pod_uid for spec in folder.specs()} if folder.path.is_dir() else {}

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation:
        name = name_of(resource, ids)
        self._folder.remove(name)
        self._names.pop(name, None)
        return Allocation(cdi=(name.qualified,))

    def inject(self, resource: str, ids: frozenset[str], place: Place, pod: PodObject) -> None:
        tenancy, libraries, name = place.tenancy, self._libraries, name_of(resource, ids)
        driver = libraries.driver(place.cards)
        edits = Edits(
            env={**driver.env, **libraries.env, **place.environment, TENANT_VARIABLE: TENANT},
            mounts=(*driver.mounts, *libraries.mounts, *_tenant_mounts(self._tenants / tenancy.uid)),
            devices=driver.devices,
            extra=driver.extra,
            version=driver.version,
        )
        spec = Spec(name, edits, tenancy.uid, tenancy.namespace, tenancy.name, place.container)
        self._folder.write(spec)
        self._names[name] = tenancy.uid

    def remove(self, uid: str) -> None:
        for name in [name for name, owner in self._names.items() if owner == uid]:
            self._folder.remove(name)
            del self._names[name]

    def owners(self) -> dict[str, str]:
        """Whose each spec is, by its name."""
        return {name.qualified: uid for name, uid in self._names.items()}


class MountInjector:
    """Without CDI."""

    def __init__(self, links: Path, tenants: Path, libraries: Libraries) -> None:
        self._links, self._tenants, self._libraries = links, tenants, libraries

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation:
        link, libraries = self._link(resource, ids), self._libraries
        _clear(link)
        driver = libraries.driver(())  # which cards is not known yet
        return Allocation(
            env={**driver.env, **libraries.env, TENANT_VARIABLE: TENANT},
            mounts=(*driver.mounts, *libraries.mounts, *_tenant_mounts(link)),
        )

    def inject(self, resource: str, ids: frozenset[str], place: Place, pod: PodObject) -> None:
        if place.environment and not reads_environment(pod, place.container, place.environment):
            raise Refused(
                "containers of this node are made without CDI, and the Pod brings no environment of its own: switch on "
                "the scheduler's webhook with --webhook-port and --env-by-annotation and make the Pod anew, or enable "
                "CDI in the container runtime, and in the agent (--cdi)"
            )
        link = self._link(resource, ids)
        self._links.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not link.is_symlink():
            _clear(link)
        fresh = link.with_name(f".{link.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self._tenants / place.tenancy.uid)
        fresh.replace(link)

    def remove(self, uid: str) -> None:
        for link, owner in self._all().items():
            if owner == uid:
                link.unlink(missing_ok=True)

    def owners(self) -> dict[str, str]:
        """Whose each link is, by its name."""
        return {link.name: owner for link, owner in self._all().items()}

    def _all(self) -> dict[Path, str]:
        if not self._links.is_dir():
            return {}
        return {path: path.readlink().name for path in self._links.iterdir() if path.is_symlink()}

    def _link(self, resource: str, ids: frozenset[str]) -> Path:
        name = name_of(resource, ids)
        return self._links / f"{name.kind.partition('/')[2]}-{name.device}"


class RuntimeInjector:
    """The one that the runtime has, known once the Node has told it. What was led by the other is still withdrawn."""

    def __init__(self, cdi: CdiInjector, mounts: MountInjector, *, has_cdi: Callable[[], bool]) -> None:
        self._cdi, self._mounts, self._has_cdi = cdi, mounts, has_cdi

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation:
        return self._chosen().reserve(resource, ids)

    def inject(self, resource: str, ids: frozenset[str], place: Place, pod: PodObject) -> None:
        self._chosen().inject(resource, ids, place, pod)

    def remove(self, uid: str) -> None:
        self._cdi.remove(uid)
        self._mounts.remove(uid)

    def owners(self) -> dict[str, str]:
        """By both."""
        return self._cdi.owners() | self._mounts.owners()

    def _chosen(self) -> CdiInjector | MountInjector:
        return self._cdi if self._has_cdi() else self._mounts


def _clear(link: Path) -> None:
    """A runtime that is told of a folder that is not there makes one: containers that restart before us (the machine
    was started anew) have it then in the link's place."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)


def _tenant_mounts(folder: Path) -> tuple[Mount, ...]:
    """The folder, read-only: nobody fills the node's memory by it. A socket can be connected to there all the same."""
    return Mount(str(folder), TENANT), Mount(str(folder / "page"), f"{TENANT}/page", writable=True)
