"""Policies, on tenants that compute: what each promises is what the card's own accounts say."""

from __future__ import annotations

from kit.cards.runtime import WINDOWS, Node, near
from simgpu.rig import wait_until

DEEP = ("--depth", "64")  # a queue that lasts while a busy machine lets its process wait


def test_three_tenants_share_by_policy_and_the_policy_is_changed_under_them(node: Node) -> None:
    """Quotas of 20, 30 and 50 percent; kernels of 1 and 20 ms; the second tenant has three processes."""
    small, middle, large = (node.tenant(core=core) for core in (20, 30, 50))
    by_tenant = [
        [node.load(small, "20ms")],
        [node.load(middle, kernel, *DEEP) for kernel in ("1ms", "20ms", "1ms")],
        [node.load(large, "1ms", *DEEP)],
    ]
    node.until_runs(*(load for loads in by_tenant for load in loads))
    tenants = [tuple(load.pid for load in loads) for loads in by_tenant]
    node.shares_come_to(near([1 / 3, 1 / 3, 1 / 3], 5), *tenants, seconds=1.5)
    node.configure("burst-share")
    node.shares_come_to(near([0.2, 0.3, 0.5], 5), *tenants, seconds=1.5)
    node.configure("fixed-share")
    node.shares_come_to(near([0.2, 0.3, 0.5], 5), *tenants, seconds=1.5)


def test_under_fixed_share_a_tenant_gets_its_quota_of_an_idle_card_and_no_more(node: Node) -> None:
    node.configure("fixed-share")
    load = node.load(node.tenant(core=30), "20ms")
    node.until_runs(load)
    node.shares_come_to(near([0.3], 4), (load.pid,), seconds=1.5)


def test_under_burst_share_what_one_leaves_the_others_have(node: Node) -> None:
    node.configure("burst-share")
    leaving, staying = (node.load(node.tenant(core=core), "1ms", *DEEP) for core in (80, 20))
    node.until_runs(leaving, staying)
    node.shares_come_to(near([0.8, 0.2], 5), (leaving.pid,), (staying.pid,))
    leaving.finish()
    node.shares_come_to(lambda share: share >= 0.95, (staying.pid,))


def test_under_fixed_share_the_first_moments_of_a_program_count_too(node: Node) -> None:
    """It cannot be paused for 0.3 s: uncharged, it would have 48% of the first 1.2 s."""
    node.configure("fixed-share")
    seen = []
    for _ in range(WINDOWS):
        load = node.load(node.tenant(core=30, memory=1 << 30), "1ms", *DEEP)
        wait_until(lambda pid=load.pid: node.busy(pid) > 0, "it computes")  # type: ignore[misc]
        seen += node.shares(1.2, (load.pid,))
        load.kill()
        if 0.2 <= seen[-1] <= 0.38:
            return
    raise AssertionError(f"shares were {seen}")
