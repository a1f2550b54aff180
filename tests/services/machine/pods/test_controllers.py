"""Which Pods are made and which end, from what is wanted and what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.local.objects import Amounts
from aliquot.model.containers.localpod import Applier, ContainerState, LocalPod, Phase, PodState, Workload
from aliquot.services.machine.pods.controllers import Decision, ready
from aliquot.services.machine.pods.controllers import decide as decide_at

WHO = Applier(0, 0, "/", {})


def wanted(kind: str = "Deployment", template: str = "now") -> Workload:
    return Workload(kind, "default", "web", {}, template, WHO, 0.0)


def there(name: str, phase: Phase = Phase.RUNNING, template: str = "now", *, ending: bool = False) -> LocalPod:
    pod = LocalPod(name, "default", name, ("Deployment", "web"), {}, template, WHO, 0.0, PodState(phase))
    return replace(pod, ending=30.0) if ending else pod


def decide(workload: Workload, amounts: Amounts, pods: list[LocalPod], now: float = 1e9) -> Decision:
    return decide_at(workload, amounts, pods, now)


def failed_at(name: str, when: float, restarts: int = 0) -> LocalPod:
    container = ContainerState("main", "", (), "", state="ended", restarts=restarts)
    return replace(there(name), state=PodState(Phase.FAILED, finished=when, containers=(container,)))


def test_deployment_creates_missing_pods() -> None:
    assert decide(wanted(), Amounts(3), [there("a")]) == Decision((None, None))


def test_scale_down_ends_pending_pods_first() -> None:
    pods = [there("a", Phase.PENDING), there("b"), there("c")]
    assert decide(wanted(), Amounts(2), pods).end == (pods[0],)


def test_deployment_replaces_old_template_and_finished_pods() -> None:
    pods = [there("a", template="old"), there("b", Phase.FAILED), there("c")]
    assert decide(wanted(), Amounts(3), pods) == Decision((None, None), (pods[0], pods[1]))


def test_deployment_does_not_count_ending_pods() -> None:
    assert decide(wanted(), Amounts(1), [there("a", ending=True)]) == Decision((None,))


def test_statefulset_recreates_name_once_free() -> None:
    pods = [there("web-0", Phase.FAILED), there("web-1"), there("web-5")]
    decision = decide(wanted("StatefulSet"), Amounts(3), pods)
    assert (decision.make, decision.end) == (("web-2",), (pods[0], pods[2]))
    assert decide(wanted("StatefulSet"), Amounts(1), [there("web-0", ending=True)]) == Decision()


def test_job_creates_only_remaining_completions() -> None:
    done = [there("a", Phase.SUCCEEDED), there("b", Phase.SUCCEEDED)]
    assert decide(wanted("Job"), Amounts(2, completions=3), done) == Decision((None,))
    assert decide(wanted("Job"), Amounts(2, completions=2), done) == Decision()


def test_job_retries_up_to_backoff_limit() -> None:
    failed = [there("a", Phase.FAILED)]
    assert decide(wanted("Job"), Amounts(1, completions=1, backoff_limit=1), failed) == Decision((None,))
    running = there("b")
    assert decide(wanted("Job"), Amounts(1, completions=1, backoff_limit=0), [*failed, running]).end == (running,)


@pytest.mark.parametrize(("failures", "pause"), [(1, 1.0), (2, 2.0), (3, 4.0), (20, 300.0)])
def test_job_backs_off_after_failures(failures: int, pause: float) -> None:
    amounts = Amounts(1, completions=1, backoff_limit=100)
    pods = [failed_at(f"p{at}", 1000.0 - failures + at + 1) for at in range(failures)]  # the last at 1000
    assert decide(wanted("Job"), amounts, pods, 1000.0 + pause - 0.01) == Decision()
    assert decide(wanted("Job"), amounts, pods, 1000.0 + pause) == Decision((None,))


def test_job_success_resets_back_off() -> None:
    good = replace(there("c"), state=PodState(Phase.SUCCEEDED, finished=1001.0))
    pods = [failed_at("a", 999.0), failed_at("b", 1000.0), good]
    assert decide(wanted("Job"), Amounts(1, completions=2), pods, 1001.0) == Decision((None,))


def test_job_counts_container_restarts_as_tries() -> None:
    amounts = Amounts(1, completions=1, backoff_limit=3)
    assert decide(wanted("Job"), amounts, [failed_at("a", 0.0, restarts=3)]) == Decision()
    assert decide(wanted("Job"), amounts, [failed_at("a", 0.0, restarts=2)]) == Decision((None,))


def test_job_without_completions_runs_workers() -> None:
    amounts = Amounts(3, completions=1, workers=True)
    assert decide(wanted("Job"), amounts, [there("a")]) == Decision((None, None))
    assert decide(wanted("Job"), amounts, [there("a"), there("b"), there("c", Phase.SUCCEEDED)]) == Decision()


def test_ready_counts_pods_with_all_containers_running() -> None:
    runs = ContainerState("a", "", (), "", state="running")
    waits = ContainerState("b", "", (), "", state="waiting")
    good = replace(there("a"), state=PodState(Phase.RUNNING, containers=(runs,)))
    half = replace(there("b"), state=PodState(Phase.RUNNING, containers=(runs, waits)))
    assert ready([good, half, there("c", ending=True)]) == 1


_PODS = st.lists(
    st.builds(
        there,
        st.integers(0, 5).map(lambda at: f"web-{at}"),
        st.sampled_from(Phase),
        st.sampled_from(["now", "old"]),
        ending=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda pod: pod.name,
)


@given(st.sampled_from(["Deployment", "StatefulSet", "Job"]), st.integers(0, 5), _PODS)
def test_decide_converges_to_desired_pods(kind: str, replicas: int, pods: list[LocalPod]) -> None:
    amounts = Amounts(replicas, completions=replicas if kind == "Job" else None, backoff_limit=20)
    serial = 100
    for _ in range(4):
        decision = decide(wanted(kind), amounts, pods)
        # The Pods that are to end are gone; those that are to come run.
        pods = [pod for pod in pods if pod not in decision.end and pod.ending is None]
        for name in decision.make:
            serial += 1
            pods.append(there(name or f"web-{serial}"))
    assert decide(wanted(kind), amounts, pods) == Decision()
    if kind != "Job":
        assert len(pods) == replicas
