"""Injects the shim, the tenant's folder and environment into a container: by a CDI spec, or by the kubelet's mounts.

    with CDI      `reserve` returns a device name; `inject` writes the CDI spec of that name: environment, shim, folder,
                  driver
    without CDI   `reserve` returns mounts, one of them of a path named after the devices; `inject` makes that path a
                  link to the tenant's folder. The environment comes from annotations of the webhook (fieldRef), or
                  from a file that the shim reads, where the agent has too little of the host (hostaccess.py)

Both are removed with the Pod, not when the container has started: a container that restarts before a restarted kubelet
knows our plugins must find them unchanged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.dialects.wire.cdi import name_of
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.webhook.admission import reads_environment
from aliquot.model.containers.edits import Edits, Mount, Spec
from aliquot.model.tenancy import Tenancy
from aliquot.services.agent.devices.plugins import Allocation, Refused

# Paths inside the container.
TENANT = "/run/aliquot/tenant"
PRELOAD = "/etc/ld.so.preload"
ENVIRONMENT = "/run/aliquot/env"  # shim/environment.c


@dataclass(frozen=True, slots=True)
class Injection:
    """What one container of a tenant gets: its own cards, and the environment that its dialect promises."""

    tenancy: Tenancy
    container: str
    cards: tuple[str, ...]  # UUIDs
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()  # of its group
    visible: Mapping[str, str] = field(default_factory=dict)  # names its cards where it can see all of the node


@dataclass(frozen=True, slots=True)
class Libraries:
    """What every container gets: the shim, and on simulated cards the stand-ins for the driver."""

    mounts: tuple[Mount, ...]
    env: Mapping[str, str]
    driver: Callable[[Sequence[str]], Edits]  # what the driver needs for the cards of these UUIDs
    folder: Path = Path()  # of the host, with the libraries


class Injector(Protocol):
    """Injects into containers by one of the two ways."""

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation:
        """The response to Allocate. It refers to what `inject` will write."""
        ...

    def inject(self, resource: str, ids: frozenset[str], injection: Injection, pod: PodObject) -> None:
        """Write what the container finds when it is created."""
        ...

    def remove(self, uid: str) -> None:
        """Remove all that was injected for the Pod."""
        ...

    def owners(self) -> dict[str, str]:
        """The Pod UID of each injection, by its name."""
        ...


class CdiInjector:
    """Injects cards with CDI specs."""

    def __init__(self, folder: CdiFolder, tenants: Path, libraries: Libraries) -> None:
        self._folder, self._tenants, self._libraries = folder, tenants, libraries
        # A node without CDI has no such folder; if it is needed and missing, writing fails with what to do.
        self._names = {spec.name: spec.pod_uid for spec in folder.specs()} if folder.path.is_dir() else {}

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation:
        name = name_of(resource, ids)
        self._folder.remove(name)
        self._names.pop(name, None)
        return Allocation(cdi=(name.qualified,))

    def inject(self, resource: str, ids: frozenset[str], injection: Injection, pod: PodObject | None = None) -> None:
        tenancy, libraries, name = injection.tenancy, self._libraries, name_of(resource, ids)
        driver = libraries.driver(injection.cards)
        edits = Edits(
            env={**driver.env, **libraries.env, **injection.environment, TENANT_VARIABLE: TENANT},
            mounts=(*driver.mounts, *libraries.mounts, *_tenant_mounts(self._tenants / tenancy.id), *injection.mounts),
            devices=driver.devices,
            extra=driver.extra,
            version=driver.version,
        )
        spec = Spec(name, edits, tenancy.id, tenancy.namespace, tenancy.name, injection.container)
        self._folder.write(spec)
        self._names[name] = tenancy.id

    def remove(self, uid: str) -> None:
        for name in [name for name, owner in self._names.items() if owner == uid]:
            self._folder.remove(name)
            del self._names[name]

    def owners(self) -> dict[str, str]:
        return {name.qualified: uid for name, uid in self._names.items()}

    def specs(self) -> list[Spec]:
        """All specs that are there. Raises CdiError."""
        return self._folder.specs() if self._folder.path.is_dir() else []


class MountInjector:
    """With mounts in the response to Allocate.

    `by_file`: the shim sets the environment from a file. Until then the container has every card of the node, for at
    Allocate nothing says which will be its own.
    """

    def __init__(self, links: Path, tenants: Path, libraries: Libraries, *, by_file: bool = False) -> None:
        self._links, self._tenants, self._libraries, self._by_file = links, tenants, libraries, by_file

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation:
        link, libraries = self._link(resource, ids), self._libraries
        _clear(link)
        driver = libraries.driver(())  # the cards are not known yet
        env, mounts = {**driver.env, **libraries.env, TENANT_VARIABLE: TENANT}, _tenant_mounts(link)
        if self._by_file:
            _clear(_environment_of(link))
            env["NVIDIA_VISIBLE_DEVICES"] = "all"
            mounts = (*mounts, Mount(str(_environment_of(link)), ENVIRONMENT))
        return Allocation(env=env, mounts=(*driver.mounts, *libraries.mounts, *mounts))

    def inject(self, resource: str, ids: frozenset[str], injection: Injection, pod: PodObject) -> None:
        by_annotation = reads_environment(pod, injection.container, injection.environment)
        if injection.environment and not by_annotation and not self._by_file:
            raise Refused(
                "this node runs containers without CDI, and the Pod has no environment by annotation: enable the "
                "scheduler's webhook with --webhook-port and --env-by-annotation and create the Pod again, or enable "
                "CDI in the container runtime and in the agent (--cdi)"
            )
        link = self._link(resource, ids)
        self._links.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not link.is_symlink():
            _clear(link)
        if self._by_file:
            self._write_environment(_environment_of(link), injection)
        fresh = link.with_name(f".{link.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self._tenants / injection.tenancy.id)
        fresh.replace(link)

    def remove(self, uid: str) -> None:
        for link, owner in self._all().items():
            if owner == uid:
                _clear(_environment_of(link))
                link.unlink(missing_ok=True)

    def _write_environment(self, path: Path, injection: Injection) -> None:
        found = {**injection.visible, **injection.environment}
        _clear(path)
        path.write_bytes(b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in found.items()))
        path.chmod(0o644)  # containers run as any user

    def owners(self) -> dict[str, str]:
        return {link.name: owner for link, owner in self._all().items()}

    def _all(self) -> dict[Path, str]:
        if not self._links.is_dir():
            return {}
        return {path: path.readlink().name for path in self._links.iterdir() if path.is_symlink()}

    def _link(self, resource: str, ids: frozenset[str]) -> Path:
        name = name_of(resource, ids)
        return self._links / f"{name.kind.partition('/')[2]}-{name.device}"


class RuntimeInjector:
    """Uses CDI if the container runtime supports it, which is known once the Node was read. Removes from both."""

    def __init__(self, cdi: CdiInjector, mounts: MountInjector, *, has_cdi: Callable[[], bool]) -> None:
        self._cdi, self._mounts, self._has_cdi = cdi, mounts, has_cdi

    def reserve(self, resource: str, ids: frozenset[str]) -> Allocation:
        return self._supported().reserve(resource, ids)

    def inject(self, resource: str, ids: frozenset[str], injection: Injection, pod: PodObject) -> None:
        self._supported().inject(resource, ids, injection, pod)

    def remove(self, uid: str) -> None:
        self._cdi.remove(uid)
        self._mounts.remove(uid)

    def owners(self) -> dict[str, str]:
        return self._cdi.owners() | self._mounts.owners()

    def _supported(self) -> CdiInjector | MountInjector:
        return self._cdi if self._has_cdi() else self._mounts


def _clear(link: Path) -> None:
    """Remove the link, or the folder in its place: a runtime creates the source of a mount if it is missing, as when
    containers restart before the agent after a reboot."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)


def _environment_of(link: Path) -> Path:
    """The file with the environment of the container that the link is for."""
    return link.with_name(f"{link.name}.env")


def _tenant_mounts(folder: Path) -> tuple[Mount, ...]:
    """The folder is read-only, so that no container fills the node's memory. Its socket can still be connected to."""
    return Mount(str(folder), TENANT), Mount(str(folder / "page"), f"{TENANT}/page", writable=True)
