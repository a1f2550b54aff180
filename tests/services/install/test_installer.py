"""What an installation writes into a namespace that was there before."""

from __future__ import annotations

import asyncio
import json

import pytest

from aliquot.services.install.clusterobjects import ClusterObjects
from aliquot.services.install.installer import Installer
from aliquot.services.install.rollout import Rollout
from kit.clusters.fakeapi import Api, Json

ENFORCE, NOTE = "pod-security.kubernetes.io/enforce", "aliquot.dev/replaced-labels"
OURS: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "s", "labels": {ENFORCE: "privileged"}}}


@pytest.mark.parametrize(
    ("now", "note"),
    [
        ("restricted", None),
        ("privileged", {ENFORCE: ["restricted", "privileged"]}),
        ("privileged", {ENFORCE: "restricted"}),
        ("restricted", {ENFORCE: ["baseline", "privileged"]}),
    ],
    ids=["first", "again", "noted by an earlier version", "changed since by its owner"],
)
def test_note_has_the_owners_label_and_ours(now: str, note: Json | None) -> None:
    annotations = {} if note is None else {NOTE: json.dumps(note)}
    api = Api({"/api/v1/namespaces/s": {"metadata": {"labels": {ENFORCE: now}, "annotations": annotations}}})
    objects = ClusterObjects(api.kube)
    rollout = Rollout(objects, "s", report=lambda *_: None, now=lambda: 0.0)
    part = asyncio.run(Installer(objects, rollout, report=lambda *_: None).own_part(OURS))
    assert json.loads(part["metadata"]["annotations"][NOTE]) == {ENFORCE: ["restricted", "privileged"]}
