"""The workloads applied to this machine, and their Pods: two tables in the database of the machine's daemon.

A Pod is written before its supervisor starts, and deleted only when none of its processes runs. So a daemon that was
killed at any line finds the Pods that it has to look for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from aliquot.adapters.storage.database import STRICT, Database
from aliquot.model.containers.localpod import Applier, ContainerState, LocalPod, Phase, PodEvent, PodState, Workload

STEP = f"""
    CREATE TABLE workloads (
        kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        manifest TEXT NOT NULL, template TEXT NOT NULL, applier TEXT NOT NULL, created REAL NOT NULL,
        PRIMARY KEY (kind, namespace, name)
    ) {STRICT};
    CREATE TABLE pods (
        uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL,
        owner_kind TEXT, owner_name TEXT,
        manifest TEXT NOT NULL, template TEXT NOT NULL, applier TEXT NOT NULL, created REAL NOT NULL,
        state TEXT NOT NULL, keeper INTEGER, keeper_started INTEGER, ending REAL,
        UNIQUE (namespace, name)
    ) {STRICT};
    """

_POD_COLUMNS = (
    "uid", "namespace", "name", "owner_kind", "owner_name", "manifest", "template", "applier", "created", "state",
    "keeper", "keeper_started", "ending",
)  # fmt: skip

_CHANGING = ("state", "keeper", "keeper_started", "ending")  # the columns of a Pod that change


class ObjectStore:
    """See the head of the file. Writes are on the disk when a call returns. Used by one thread. Raises StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def workloads(self) -> list[Workload]:
        """All workloads, oldest first."""
        rows = self._database.all(
            "SELECT kind, namespace, name, manifest, template, applier, created FROM workloads ORDER BY created, rowid"
        )
        return [
            Workload(kind, namespace, name, json.loads(manifest), template, _applier(applier), created)
            for kind, namespace, name, manifest, template, applier, created in rows
        ]

    def pods(self) -> list[LocalPod]:
        """All Pods, in the order of their creation."""
        rows = self._database.all(f"SELECT {', '.join(_POD_COLUMNS)} FROM pods ORDER BY rowid")  # noqa: S608 - no input
        return [_pod(dict(zip(_POD_COLUMNS, row, strict=True))) for row in rows]

    def write(
        self,
        *,
        workloads: Iterable[Workload] = (),
        pods: Iterable[LocalPod] = (),
        gone: Iterable[Workload] = (),
        gone_pods: Iterable[LocalPod] = (),
    ) -> None:
        """Write and delete these in one transaction."""
        with self._database.transaction() as database:
            database.executemany(
                "INSERT OR REPLACE INTO workloads (kind, namespace, name, manifest, template, applier, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        workload.kind, workload.namespace, workload.name,
                        json.dumps(workload.manifest), workload.template,
                        json.dumps(asdict(workload.applier)), workload.created,
                    )
                    for workload in workloads
                ],
            )  # fmt: skip
            database.executemany(
                "DELETE FROM workloads WHERE kind = ? AND namespace = ? AND name = ?",
                [(workload.kind, workload.namespace, workload.name) for workload in gone],
            )
            database.executemany("DELETE FROM pods WHERE uid = ?", [(pod.uid,) for pod in gone_pods])
            database.executemany(
                f"INSERT INTO pods ({', '.join(_POD_COLUMNS)})"  # noqa: S608 - no input
                f" VALUES ({', '.join('?' * len(_POD_COLUMNS))}) ON CONFLICT (uid) DO UPDATE SET"
                f" {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}",
                [_row(pod) for pod in pods],
            )


def _row(pod: LocalPod) -> tuple[Any, ...]:
    kind, name = pod.owner or (None, None)
    pid, started = pod.supervisor or (None, None)
    return (
        pod.uid, pod.namespace, pod.name, kind, name, json.dumps(pod.manifest), pod.template,
        json.dumps(asdict(pod.applier)), pod.created, json.dumps(asdict(pod.state)), pid, started, pod.ending,
    )  # fmt: skip


def _pod(row: Mapping[str, Any]) -> LocalPod:
    owner = None if row["owner_kind"] is None else (row["owner_kind"], row["owner_name"])
    supervisor = None if row["keeper"] is None else (row["keeper"], row["keeper_started"])
    return LocalPod(
        row["uid"], row["namespace"], row["name"], owner, json.loads(row["manifest"]), row["template"],
        _applier(row["applier"]), row["created"], _state(json.loads(row["state"])), supervisor, row["ending"],
    )  # fmt: skip


def _applier(text: str) -> Applier:
    return Applier(**json.loads(text))


def _state(values: dict[str, Any]) -> PodState:
    containers = (
        ContainerState(**{**container, "command": tuple(container["command"])}) for container in values["containers"]
    )
    return PodState(
        **{
            **values,
            "phase": Phase(values["phase"]),
            "containers": tuple(containers),
            "why": tuple(values["why"]),
            "events": tuple(PodEvent(**event) for event in values["events"]),
        }
    )
