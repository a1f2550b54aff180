"""The Jobs of CronJobs: starts each run when it is due, and removes old Jobs. As Kubernetes does, with two differences:
the newest Job stays even where the history limit is 0, so that a restarted daemon knows which run was the last; and one
CronJob has a limited number of Pods at once.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from aliquot.dialects.local.cron import Moment, next_after, parse_schedule
from aliquot.dialects.local.objects import (
    CRON_JOB,
    MOST_REPLICAS,
    amounts_of,
    run_of,
    scheduled_of,
    template_of,
)
from aliquot.model.containers.localpod import Phase, Workload
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import Invalid
from aliquot.services.machine.pods.controllers import outcome
from aliquot.services.machine.pods.manager import PodManager
from aliquot.services.machine.pods.records import workload_key

_LOG = logging.getLogger("aliquot.pods")
_LOOK_BACK = 25 * 3600  # seconds in which every missed run is looked at; before, only the first one
_AT_ONCE = 0.02  # seconds of one tick
_MOST_MISSED = 2000  # runs looked at, one per minute of that time and some
_KEPT = {Phase.SUCCEEDED: ("successfulJobsHistoryLimit", 3), Phase.FAILED: ("failedJobsHistoryLimit", 1)}


def zone_of(cron_job: JsonView) -> tzinfo | Invalid | None:
    """Its time zone; None: that of this machine."""
    name = cron_job["spec"].get("timeZone")
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        return Invalid("spec.timeZone", name, "the name of a time zone, such as Europe/Berlin or Etc/UTC")


def next_run(cron_job: Workload, after: float) -> float | None:
    """When it runs next after that moment, in seconds since 1970; None: never."""
    schedule, zone = parse_schedule(cron_job.manifest["spec"]["schedule"]), zone_of(cron_job.manifest)
    if schedule is None or isinstance(zone, Invalid):
        return None
    local = datetime.fromtimestamp(after, UTC).astimezone(zone)
    moment: Moment | None = Moment(local.year, local.month, local.day, local.hour, local.minute)
    while moment is not None:
        moment = next_after(schedule, moment)
        # A clock that is set back shows an hour twice: the second time counts as over.
        at = None if moment is None else _instant(moment, zone)
        if at is None or at > after:
            return at
    return None


def _instant(moment: Moment, zone: tzinfo | None) -> float:
    return datetime(*moment).astimezone().timestamp() if zone is None else datetime(*moment, tzinfo=zone).timestamp()


class CronJobs:
    """Every CronJob of the machine; call `tick` often."""

    def __init__(self, pods: PodManager) -> None:
        self._pods = pods
        self._passed: dict[tuple[str, str, str], float] = {}  # the last run that was missed on purpose
        self._turn = -1  # the CronJob that was looked at last

    def jobs(self, cron_job: Workload) -> list[Workload]:
        """Its Jobs, the oldest first."""
        found = [
            (scheduled, job)
            for job in self._pods.workloads.values()
            if job.kind == "Job"
            and (job.namespace, job.applier.user) == (cron_job.namespace, cron_job.applier.user)
            and (scheduled := scheduled_of(job.manifest, cron_job.name)) is not None
        ]
        return [job for _, job in sorted(found, key=lambda entry: entry[0])]

    def active(self, cron_job: Workload) -> list[Workload]:
        """Those that are not over."""
        return [job for job in self.jobs(cron_job) if not self._outcome(job).over]

    def last_run(self, cron_job: Workload) -> float | None:
        """When its newest Job was to begin, in seconds since 1970. That Job stays as long as the CronJob."""
        runs = [scheduled_of(job.manifest, cron_job.name) or 0 for job in self.jobs(cron_job)]
        return max(runs) * 60.0 if runs else None

    def tick(self, now: float) -> None:
        """Start the runs that are due, and remove Jobs beyond the limits. Hundreds of CronJobs are looked at in several
        ticks: a user may have that many to keep the event loop busy."""
        cron_jobs = [workload for workload in self._pods.workloads.values() if workload.kind == CRON_JOB]
        until = time.perf_counter() + _AT_ONCE
        for _ in cron_jobs:
            self._turn = (self._turn + 1) % len(cron_jobs)
            cron_job = cron_jobs[self._turn]
            if not cron_job.manifest["spec"].get("suspend"):
                self._start(cron_job, now)
            self._remove_old(cron_job)
            if time.perf_counter() >= until:
                return

    def _start(self, cron_job: Workload, now: float) -> None:
        due = self._due(cron_job, now)
        if due is None:
            return
        spec = cron_job.manifest["spec"]
        deadline, policy = spec.get("startingDeadlineSeconds"), spec.get("concurrencyPolicy") or "Allow"
        if deadline is not None and now - due > deadline:
            self._passed[workload_key(cron_job)] = due
            return
        active = self.active(cron_job)
        if policy == "Forbid" and active:
            return
        for job in active if policy == "Replace" else ():
            self._pods.delete_later(workload=job, pods=self._pods.owned(job), grace=None)
        manifest = run_of(cron_job.manifest, int(due) // 60)
        pods = amounts_of(manifest).replicas + sum(len(self._pods.owned(job)) for job in self.jobs(cron_job))
        if pods > MOST_REPLICAS:
            _LOG.warning("cron_job_has_too_many_pods", extra={"data": {"cron_job": cron_job.name, "pods": pods}})
            self._passed[workload_key(cron_job)] = due
            return
        name = manifest["metadata"]["name"]
        job = Workload("Job", cron_job.namespace, name, manifest, template_of(manifest), cron_job.applier, now)
        if workload_key(job) in self._pods.workloads:  # of another user
            self._passed[workload_key(cron_job)] = due
            return
        key = workload_key(cron_job)
        before, self._passed[key] = self._passed.get(key, 0.0), due  # until it is on the disk
        self._pods.put_later(job, now, lambda: self._passed.update({key: before}))

    def _due(self, cron_job: Workload, now: float) -> float | None:
        """The latest run that should have begun by now, and did not."""
        last = max(cron_job.created, self._passed.get(workload_key(cron_job), 0.0), self.last_run(cron_job) or 0.0)
        due = next_run(cron_job, last)
        if due is None or due > now:
            return None
        at = max(due, now - _LOOK_BACK)
        for _ in range(_MOST_MISSED):
            following = next_run(cron_job, at)
            if following is None or following > now:
                break
            due = at = following
        return due

    def _outcome(self, job: Workload) -> Phase:
        return outcome(amounts_of(job.manifest), self._pods.owned(job))

    def _remove_old(self, cron_job: Workload) -> None:
        jobs = self.jobs(cron_job)[:-1]
        for phase, (field, usual) in _KEPT.items():
            limit = cron_job.manifest["spec"].get(field)
            limit = usual if limit is None else limit
            over = [job for job in jobs if self._outcome(job) is phase]
            for job in over[: max(0, len(over) - limit)]:
                self._pods.delete_later(workload=job, pods=self._pods.owned(job), grace=None)

    def delete_jobs(self, cron_job: Workload, grace: float | None) -> list[str]:
        """Delete its Jobs and their Pods, whose UIDs are returned. The CronJob itself is gone already."""
        going = []
        for job in self.jobs(cron_job):
            owned = self._pods.owned(job)
            going += [pod.uid for pod in owned]
            self._pods.delete_later(workload=job, pods=owned, grace=grace)
        return going
