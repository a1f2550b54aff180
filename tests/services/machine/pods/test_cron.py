"""Which runs of a CronJob begin, and which Jobs are removed, over days of simulated time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from aliquot.model.containers.localpod import Applier, LocalPod, Phase, PodState, Workload
from aliquot.services.machine.pods.cron import CronJobs, next_run
from aliquot.services.machine.pods.manager import PodManager
from aliquot.services.machine.pods.records import workload_key

WHO = Applier(0, 0, "/", {})
START = datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC).timestamp()


class Store:
    """What CronJobs needs of the manager: workloads, and one Pod for each Job."""

    def __init__(self, *workloads: Workload) -> None:
        self.workloads = {workload_key(workload): workload for workload in workloads}
        self.phases: dict[str, Phase] = {}
        self.is_full = False  # its disk

    def owned(self, workload: Workload) -> list[LocalPod]:
        phase = self.phases.get(workload.name, Phase.RUNNING)
        return [LocalPod(workload.name, "default", "p", None, {}, "", WHO, 0.0, PodState(phase))]

    def put_later(self, job: Workload, now: float, failed: Callable[[], None]) -> None:
        if self.is_full:
            failed()
        else:
            self.workloads[workload_key(job)] = job

    def delete_later(self, *, workload: Workload, pods: Iterable[LocalPod], grace: float | None) -> None:
        del self.workloads[workload_key(workload)]

    @property
    def jobs(self) -> list[str]:
        return [name for kind, _, name in self.workloads if kind == "Job"]


def cron_job(schedule: str = "*/10 * * * *", **spec: Any) -> Workload:
    template = {"spec": {"backoffLimit": 0, "template": {"spec": {"containers": []}}}}
    manifest = {
        "kind": "CronJob",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"schedule": schedule, "timeZone": "Etc/UTC", "jobTemplate": template, **spec},
    }
    return Workload("CronJob", "default", "c", manifest, "", WHO, START)


def run(store: Store, *minutes: float) -> CronJobs:
    """Look at the clock so many minutes after the start."""
    cron_jobs = CronJobs(cast(PodManager, store))
    for minute in minutes:
        cron_jobs.tick(START + minute * 60)
    return cron_jobs


def named(*minutes: int) -> list[str]:
    """The Jobs of runs so many minutes after 12:00."""
    return [f"c-{int(START) // 60 + minute}" for minute in minutes]


def test_a_run_begins_once_when_it_is_due() -> None:
    store = Store(cron_job())
    run(store, 0, 5, 9)
    assert store.jobs == []
    run(store, 9.5, 9.6, 10, 12)
    assert store.jobs == named(10)
    run(store, 20)
    assert store.jobs == named(10, 20)


def test_after_a_pause_only_the_latest_run_begins() -> None:
    store = Store(cron_job())
    run(store, 95)
    assert store.jobs == named(90)
    monthly = Store(cron_job("0 13 16 11 *"))
    run(monthly, 60 * 24 * 5)
    assert monthly.jobs == named(60)


def test_a_run_that_is_too_late_is_missed() -> None:
    store = Store(cron_job(startingDeadlineSeconds=60))
    run(store, 15)
    assert store.jobs == []
    run(store, 20)
    assert store.jobs == named(20)


@pytest.mark.parametrize(
    ("policy", "minutes"), [(None, (10, 20)), ("Allow", (10, 20)), ("Forbid", (10,)), ("Replace", (20,))]
)
def test_concurrency_policy_decides_while_a_job_runs(policy: str | None, minutes: tuple[int, ...]) -> None:
    store = Store(cron_job(concurrencyPolicy=policy))
    run(store, 10, 20)
    assert store.jobs == named(*minutes)


def test_a_suspended_cron_job_starts_nothing() -> None:
    store = Store(cron_job(suspend=True))
    run(store, 10, 20)
    assert store.jobs == []


def test_old_jobs_are_removed_by_their_limits() -> None:
    store = Store(cron_job(successfulJobsHistoryLimit=2))
    for at in (10, 20, 30, 40, 50, 60):
        run(store, at)
        store.phases[store.jobs[-1]] = Phase.FAILED if at in (20, 40) else Phase.SUCCEEDED
    run(store, 61)
    assert store.jobs == named(30, 40, 50, 60)  # two that succeeded, one that failed, and the newest


def test_the_newest_job_stays_so_that_its_run_is_not_repeated() -> None:
    store = Store(cron_job(successfulJobsHistoryLimit=0))
    run(store, 10)
    store.phases[store.jobs[-1]] = Phase.SUCCEEDED
    run(store, 11, 12)
    run(store, 13)  # a restarted daemon
    assert store.jobs == named(10)


def test_deleting_a_cron_job_deletes_its_jobs_and_no_other() -> None:
    cron = cron_job()
    other = replace(cron, kind="Job", name="c-5", manifest={"metadata": {"name": "c-5"}, "spec": {}})
    store = Store(cron, other)
    assert run(store, 10).delete_jobs(cron, None) == named(10)
    assert store.jobs == ["c-5"]


def test_a_time_zone_is_heeded_when_clocks_change() -> None:
    berlin = cron_job("30 2 * * *", timeZone="Europe/Berlin")
    before = datetime(2026, 10, 24, 12, 0, tzinfo=UTC).timestamp()
    first = next_run(berlin, before)
    assert first == datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()  # 02:30 summer time
    assert next_run(berlin, first) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC).timestamp()


def test_run_that_cannot_be_stored_is_tried_again() -> None:
    store = Store(cron_job())
    store.is_full = True
    cron_jobs = run(store, 10)
    assert store.jobs == []
    store.is_full = False
    cron_jobs.tick(START + 11 * 60)
    assert store.jobs == named(10)


def test_tick_looks_at_many_cron_jobs_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def numbered(at: int) -> Workload:
        one = cron_job()
        return replace(
            one, name=f"c{at}", manifest={**one.manifest, "metadata": {"name": f"c{at}", "namespace": "default"}}
        )

    monkeypatch.setattr("aliquot.services.machine.pods.cron._AT_ONCE", 0.0)
    store = Store(*(numbered(at) for at in range(5)))
    cron_jobs = CronJobs(cast(PodManager, store))
    started = []
    for _ in range(5):
        cron_jobs.tick(START + 600)
        started.append(len(store.jobs))
    assert started == [1, 2, 3, 4, 5]
