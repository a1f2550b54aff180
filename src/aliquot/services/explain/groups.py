"""Members of PodGroups on a snapshot: as the scheduler's filter decides about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.podgroups import GroupObject, api_of, group_key, membership
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.views import pod_names
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.grant import Grant
from aliquot.model.group import Shortfall
from aliquot.model.refusal import Invalid, Reason, Refusal
from aliquot.placement.board import Ints
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.groups.admission import Rows, admit

_BETWEEN = 10.0  # seconds that pass from one Pod to the next, so that each is decided anew


@dataclass(slots=True)
class GroupMembers:
    """The members of the cluster's groups, with their manifests."""

    cluster: Cluster
    manifests: dict[str, JsonObject] = field(default_factory=dict)  # by uid
    _asked: list[str] = field(default_factory=list)  # uids that kube-scheduler has asked our scheduler about
    _now: float = 0.0
    _latest: tuple[Shortfall, tuple[Refusal, ...], tuple[Refusal, ...]] | None = None

    def add_group(self, manifest: JsonObject) -> str | None:
        """A PodGroup; other kinds of that name are ignored. Returns what is wrong with it."""
        api, group = api_of(manifest), read_object(manifest, GroupObject, "PodGroup")
        if api is None:
            return None
        if isinstance(group, Invalid):
            return f"is no PodGroup: {group.sentence()}"
        self.cluster.groups.set_group(api, group)
        read = self.cluster.groups.groups[group_key(api, group)]
        return f"keeps its Pods waiting: {read.sentence()}" if isinstance(read, Invalid) else None

    def note(self, pod: PodObject, manifest: JsonObject) -> None:
        """A Pod of the cluster."""
        if membership(pod) is not None:
            uid = pod_names(pod).uid
            self.manifests[uid] = manifest
            if _was_asked(manifest):
                self._asked.append(uid)

    def expect(self, manifests: Iterable[JsonObject]) -> None:
        """Pods that will be placed: those of a PodGroup count for each other."""
        for manifest in manifests:
            pod = read_object(manifest, PodObject, "pod")
            if isinstance(pod, PodObject) and membership(pod) is not None:
                uid = pod_names(pod).uid
                if uid not in self.cluster.groups.members:
                    self.cluster.set_pod(pod)
                self.manifests.setdefault(uid, manifest)

    def admit(
        self, manifest: JsonObject, claim: Claim, rows: Ints, rows_of: Rows, *, keep: bool
    ) -> Grant | Shortfall | None:
        """A member's place, or what its group lacks; None: the Pod goes by itself."""
        pod = read_object(manifest, PodObject, "pod") if self.cluster.groups.groups else None
        if not isinstance(pod, PodObject):
            return None
        while self._asked:  # now that all nodes are known
            uid = self._asked.pop()
            asked = rows_of(uid)
            if asked is not None:
                self.cluster.groups.remember_rows(uid, asked)
        self._now += _BETWEEN
        return admit(self.cluster, pod, claim, rows, now=self._now, keep=keep, rows_of=rows_of)

    def refusals(
        self, short: Shortfall, refusals: tuple[Refusal, ...], claim: Claim, rows: Ints
    ) -> tuple[Refusal, ...]:
        """The refusals, and one for every node that would take the Pod by itself. Members that wait share one tuple."""
        latest = self._latest
        if latest is None or latest[0] != short or latest[1] is not refusals:
            names = (self.cluster.board.names[row] for row in self.cluster.chooser.fitting(claim, rows).tolist())
            waiting = [Refusal(name, None, Reason.GROUP, short.needed, short.has, never=False) for name in names]
            latest = self._latest = (short, refusals, (*refusals, *waiting))
        return latest[2]


def _was_asked(manifest: JsonObject) -> bool:
    """Whether kube-scheduler has asked our scheduler about a waiting Pod: it repeats our words in the Pod's condition.
    A Pod without a node that its own rules allow never gets that far."""
    conditions = mapping(manifest.get("status")).get("conditions")
    return any(
        isinstance(condition, dict)
        and condition.get("type") == "PodScheduled"
        and condition.get("status") == "False"
        and "aliquot:" in str(condition.get("message"))
        for condition in (conditions if isinstance(conditions, list) else ())
    )
