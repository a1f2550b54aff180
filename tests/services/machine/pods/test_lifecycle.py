"""Which container of a Pod is started when: as the kubelet would have it, on a clock that is passed in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.services.machine.pods.lifecycle import FIRST_PAUSE, LONGEST_PAUSE, STEADY, Container, Lifecycle


def course(*containers: Container, policy: str = "Always") -> Lifecycle:
    return Lifecycle(containers, policy, 0.0)


def init(name: str = "init") -> Container:
    return Container(name, init=True, sidecar=False)


def sidecar(name: str = "side") -> Container:
    return Container(name, init=True, sidecar=True)


def main(name: str = "main") -> Container:
    return Container(name, init=False, sidecar=False)


def due(found: Lifecycle, now: float) -> list[str]:
    return [current.name for current in found.due(now)]


def test_main_containers_start_together() -> None:
    found = course(main("a"), main("b"))
    assert due(found, 0.0) == ["a", "b"]
    assert found.phase == "Pending"
    found.started(found.containers[0], 7, 0.0)
    assert (due(found, 0.0), found.phase) == (["b"], "Running")


def test_init_containers_run_in_order_before_main() -> None:
    first, second, last = init("first"), init("second"), main()
    found = course(first, second, last)
    for current, after in ((first, "second"), (second, "main")):
        assert due(found, 0.0) == [current.name]
        found.started(current, 7, 0.0)
        assert due(found, 0.0) == []
        found.ended(current, 0, 0.0)
        assert due(found, 0.0) == [after]


def test_failed_init_container_restarts_unless_never() -> None:
    for policy, again in (("Always", True), ("OnFailure", True), ("Never", False)):
        found = course(init(), main(), policy=policy)
        found.started(found.containers[0], 7, 0.0)
        found.ended(found.containers[0], 1, 5.0)
        assert due(found, 5.0 + FIRST_PAUSE) == (["init"] if again else [])
        assert found.phase == ("Pending" if again else "Failed")


def test_sidecar_does_not_keep_pod_running() -> None:
    side, last = sidecar(), main()
    found = course(side, last, policy="Never")
    assert due(found, 0.0) == ["side"]
    found.started(side, 7, 0.0)
    assert due(found, 0.0) == ["main"]
    found.started(last, 8, 0.0)
    found.ended(last, 0, 1.0)
    assert (found.over, found.phase) == (True, "Running")  # until the sidecar has ended too
    found.ended(side, 143, 1.0)
    assert (found.phase, due(found, 1000.0)) == ("Succeeded", [])


def test_sidecar_restarts_under_any_policy() -> None:
    side, last = sidecar(), main()
    found = course(side, last, policy="Never")
    found.started(side, 7, 0.0)
    found.started(last, 8, 0.0)
    found.ended(side, 0, 1.0)
    assert due(found, 1.0 + FIRST_PAUSE) == ["side"]


def test_restart_policy_decides_restarts() -> None:
    for policy, code, again in (
        ("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True),
        ("Never", 0, False), ("Never", 1, False),
    ):  # fmt: skip
        found = course(main(), policy=policy)
        found.started(found.containers[0], 7, 0.0)
        found.ended(found.containers[0], code, 0.0)
        assert due(found, FIRST_PAUSE) == (["main"] if again else []), (policy, code)
        assert found.over is not again


def test_restart_back_off_doubles_and_resets_after_steady_run() -> None:
    found = course(main())
    (current,) = found.containers
    now, pauses = 0.0, []
    for _ in range(12):
        found.started(current, 7, now)
        found.ended(current, 1, now)
        assert current.due is not None
        pauses.append(current.due - now)
        now = current.due
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE == 300
    found.started(current, 7, now)
    found.ended(current, 1, now + STEADY)
    assert current.due == now + STEADY + FIRST_PAUSE
    assert current.restarts == 13


def test_pod_fails_with_a_container() -> None:
    found = course(main("a"), main("b"), policy="Never")
    for current, code in zip(found.containers, (0, 137), strict=True):
        found.started(current, 7, 0.0)
        found.ended(current, code, 0.0)
    assert (found.phase, found.reason) == ("Failed", "container b was killed by signal 9")


def test_job_pod_fails_at_backoff_limit() -> None:
    one, other = main("a"), main("b")
    found = Lifecycle([one, other], "OnFailure", 0.0, most_restarts=2)
    found.started(other, 8, 0.0)
    for now in (0.0, 10.0, 20.0):
        found.started(one, 7, now)
        found.ended(one, 1, now)
    assert (found.over, due(found, 1000.0)) == (True, [])
    assert found.reason == "container a: exited with code 1; the Job reached its backoffLimit (2)"
    found.ended(other, 143, 21.0)  # it was ended: its Pod is over
    assert found.phase == "Failed"


def test_container_start_failure_has_reason() -> None:
    found = course(main(), policy="Never")
    found.ended(found.containers[0], 127, 0.0, "nothing: command not found")
    assert (found.phase, found.reason) == ("Failed", "container main: nothing: command not found")


@given(
    st.lists(st.sampled_from(["init", "side", "main"]), max_size=4),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.lists(st.integers(0, 2), max_size=40),
)
def test_main_containers_never_run_before_init(kinds: list[str], policy: str, codes: list[int]) -> None:
    kinds = sorted([*kinds, "main"], key=lambda kind: kind == "main")
    found = course(
        *(Container(f"{kind}-{at}", kind != "main", kind == "side") for at, kind in enumerate(kinds)), policy=policy
    )
    now = 0.0
    for code in codes:
        now = max(now, found.next_due() or now)
        for current in found.due(now):
            assert current.init or all(
                other.exit_code == 0 for other in found.containers if other.init and not other.sidecar
            )
            found.started(current, 7, now)
        for current in found.running()[:1]:
            found.ended(current, code, now)
        assert not (found.over and not found.running() and found.next_due() is not None)
