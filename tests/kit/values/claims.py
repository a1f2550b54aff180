"""Any claim of any dialect with the rules it was written under, its grants, and Nodes and Pods written from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from aliquot.dialects import MemoryUnit, QgpuRules, Rules, render_grant, render_inventory, render_pod
from aliquot.model.claim import AppClass, CardFilter, Claim, ContainerClaim, Preference, Role, Slice
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, Offer, Order

modest = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SEED, LATER = Rules(), Rules(qgpu=QgpuRules.Y2026, gpushare_unit=MemoryUnit.MIB)
HAMI = Rules(served=frozenset({"qgpu", "t9k", "gpushare", "hami", "kai"}))
words = st.text("abcdefghij-0123456789", min_size=1, max_size=8)

# Claims, each with the rules it was written under.


@st.composite
def placed(draw: st.DrawFn, pieces: st.SearchStrategy[tuple[Slice, int | None]], most: int = 4) -> list[ContainerClaim]:
    """Containers with gaps between them, init containers and sidecars first."""
    names = draw(st.lists(words, min_size=1, max_size=most, unique=True))
    late = [draw(st.booleans()) for _ in names]
    found = []
    for in_main in (False, True):
        index = -1
        for name in (name for name, main in zip(names, late, strict=True) if main is in_main):
            index += draw(st.integers(1, 3))
            role = Role.MAIN if in_main else draw(st.sampled_from([Role.INIT, Role.SIDECAR]))
            found.append(ContainerClaim(name, index, role, *draw(pieces)))
    return found


some_models = st.none() | st.sampled_from([("A100",), ("H200", "TESLA V100")]).map(CardFilter)


def _claim(draw: st.DrawFn, containers: list[ContainerClaim], dialect: str, offer: Offer, **rest: Any) -> Claim:
    namespace = draw(words)
    rest = {"cards": draw(some_models), **rest}
    owner = draw(st.none() | st.builds(f"{{}}/{namespace}/{{}}".format, words, words))
    return Claim(
        uid=draw(words),
        namespace=namespace,
        name=draw(words),
        dialect=dialect,
        offer=offer,
        containers=tuple(containers),
        owner=owner,
        cpu_milli=draw(st.integers(0, 10**6)),
        memory_mib=draw(st.integers(0, 10**6)),
        **rest,
    )


def _spread(cards: int, core: int, memory: int) -> tuple[Slice, int]:
    core = (cards - 1) * 100 + core
    return Slice(memory_mib=max(memory // cards, 1) * 1024, core_milli=core // cards * 10), cards


gib = st.integers(1, 4096)
of_seed = st.builds(
    lambda memory, core: (Slice(memory_mib=memory * 1024, core_milli=core and core * 10), 1),
    gib,
    st.none() | st.integers(1, 99),
)
of_2026 = st.one_of(
    st.builds(
        lambda memory, core: (Slice(memory_mib=memory * 1024, core_milli=core and core * 50), 1),
        gib,
        st.none() | st.integers(1, 19),
    ),
    st.builds(lambda n: (Slice(memory_percent=100, core_milli=1000, exclusive=True), n), st.integers(1, 16)),
    st.builds(_spread, st.integers(2, 8), st.integers(1, 99), gib),
)
online = st.builds(lambda memory: (Slice(memory_mib=memory * 1024), 1), gib)
offline = st.builds(lambda m, g: (Slice(memory_mib=m * 1024, greedy_milli=g * 10), 1), gib, st.integers(1, 25))
cards = st.builds(lambda n: (Slice(memory_percent=100, exclusive=True), n), st.integers(1, 16))
percent = st.builds(lambda n: (Slice(memory_percent=n), 1), st.integers(1, 100))


@st.composite
def qgpu_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    app_class = draw(st.sampled_from(AppClass))
    rules = draw(st.sampled_from([SEED, LATER]))
    normal = of_seed if rules is SEED else of_2026
    pieces = {AppClass.NORMAL: normal, AppClass.ONLINE: online, AppClass.OFFLINE: offline}[app_class]
    return _claim(
        draw,
        draw(placed(pieces)),
        "qgpu",
        Offer.QGPU if app_class is AppClass.NORMAL else Offer.QGPU_MIXED,
        app_class=app_class,
        together=app_class is AppClass.OFFLINE,
    ), rules


@st.composite
def t9k_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    way = draw(st.sampled_from(["cards", "percent", "node"]))
    if way == "node":
        pieces = st.just((Slice(memory_percent=100, exclusive=True), None))
        containers = draw(placed(pieces, most=1))
        return _claim(draw, containers, "t9k", Offer.T9K_EXCLUSIVE, whole_node=True), SEED
    containers = draw(placed(cards if way == "cards" else percent))
    return _claim(draw, containers, "t9k", Offer.T9K_EXCLUSIVE if way == "cards" else Offer.T9K_SHARED), SEED


@st.composite
def gpushare_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    rules, count = draw(st.sampled_from([SEED, LATER])), draw(st.integers(1, 8))
    if draw(st.booleans()):
        return _claim(draw, draw(placed(cards)), "gpushare", Offer.GPUSHARE_WHOLE), rules
    core = st.integers(1, 20).map(lambda part: part * 50) if draw(st.booleans()) else st.none()
    pieces = st.builds(
        lambda n, milli: (Slice(n * rules.gpushare_unit.mib, core_milli=milli), count), st.integers(1, 4096), core
    )
    containers = draw(placed(pieces))
    offer = Offer.GPUSHARE if containers[0].slice.core_milli is None else Offer.GPUSHARE_CORE
    return _claim(draw, containers, "gpushare", offer, together=True), rules


@st.composite
def hami_slices(draw: st.DrawFn) -> tuple[Slice, int]:
    count, core = draw(st.integers(1, 8)), draw(st.none() | st.integers(1, 100))
    mib, percent = draw(
        st.one_of(st.tuples(st.integers(1, 10**6), st.just(0)), st.tuples(st.just(0), st.integers(1, 100)))
    )
    if percent == 100 and core in (None, 100):
        return Slice(memory_percent=100, exclusive=True), count
    return Slice(mib, percent, None if core is None else core * 10, exclusive=core == 100), count


@st.composite
def hami_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    lists = [tuple(sorted(draw(st.sets(st.sampled_from(["A100", "V100", "T4"]))))) for _ in range(2)]
    lists += [tuple(sorted(draw(st.sets(words.map("GPU-{}".format), max_size=2)))) for _ in range(2)]
    preference = draw(st.none() | st.builds(Preference, st.sampled_from(Order), st.sampled_from(Order)))
    chosen = CardFilter(*lists) if any(lists) else None
    app_class = draw(st.sampled_from(AppClass))
    containers = draw(placed(hami_slices()))
    if draw(st.booleans()):  # HAMi's policy mutex
        containers = [replace(part, slice=replace(part.slice, exclusive=True)) for part in containers]
    shareable = any(container.count == 1 and not container.slice.exclusive for container in containers)
    return _claim(
        draw,
        containers,
        "hami",
        draw(st.sampled_from([Offer.HAMI, Offer.HAMI_SHARED])) if shareable else Offer.HAMI,
        app_class=app_class,
        cards=chosen,
        preference=preference,
    ), HAMI


@st.composite
def kai_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    percent = st.integers(1, 99) | st.integers(1001, 1999).map(lambda parts: parts / 1000)
    pieces = st.tuples(
        percent.map(lambda part: Slice(memory_percent=part)) | st.integers(1, 10**6).map(Slice), st.integers(1, 8)
    )
    return _claim(draw, draw(placed(pieces, most=1)), "kai", Offer.KAI), HAMI


claims = st.one_of(qgpu_claims(), t9k_claims(), gpushare_claims(), hami_claims(), kai_claims())


# Nodes and grants.
inventories = st.lists(
    st.builds(
        Card,
        index=st.integers(0, 63),
        memory_mib=st.integers(1, 10**6),
        uuid=st.just("") | words,
        model=st.text(max_size=12),
        healthy=st.booleans(),
        numa=st.none() | st.integers(0, 7),
    ),
    max_size=8,
    unique_by=(lambda card: card.index, lambda card: card.uuid or card.index),
)


NODE = Node("n1", tuple(Card(index, 65536, uuid=f"GPU-{index}" if index % 2 else "") for index in range(16)))


@st.composite
def grants(draw: st.DrawFn) -> tuple[Claim, Rules, Grant]:
    claim, rules = draw(claims)
    shared = draw(st.permutations(range(16)))
    containers = []
    for container in claim.containers:
        count = 16 if container.count is None else container.count
        chosen = sorted(shared[:count] if claim.together else draw(st.permutations(range(16)))[:count])
        shares = tuple(
            Share(
                card=index,
                memory_mib=container.slice.memory_on(NODE.cards[index].memory_mib),
                core_milli=container.slice.core_milli,
                greedy_milli=container.slice.greedy_milli,
                exclusive=container.slice.exclusive,
                uuid=NODE.cards[index].uuid,
            )
            for index in chosen
        )
        containers.append(ContainerGrant(container.name, container.index, container.role, shares))
    return claim, rules, Grant(claim.uid, "n1", tuple(containers), claim.whole_node)


def bound(claim: Claim, rules: Rules, annotations: dict[str, str]) -> dict[str, Any]:
    pod = render_pod(claim, rules)
    pod["metadata"].setdefault("annotations", {}).update(annotations)
    pod["spec"]["nodeName"] = "n1"
    return pod


# Nothing raises.
pods = st.one_of(
    claims.map(lambda case: render_pod(*case)),
    grants().map(lambda case: bound(case[0], case[1], render_grant(case[0], case[2], NODE, 1, case[1]))),
).map(
    lambda pod: {
        **pod,
        "spec": {
            **pod["spec"],
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "nodeSelector": {"a": "b"},
            "overhead": {"cpu": "1"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}]
                    }
                }
            },
        },
    }
)
nodes = inventories.map(
    lambda found: {
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "annotations": render_inventory(found),
            "labels": {
                "qgpu-device-enable": "enable",
                "tke.cloud.tencent.com/qgpu-schedule-policy": "fs",
                "sched.tensorstack.dev/accelerator": "nvidia-gpu",
                "sched.tensorstack.dev/node-alloc-mode": "xgn",
            },
        },
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}], "unschedulable": False},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {
                "aliyun.com/gpu-mem": "64",
                "aliyun.com/gpu-count": "4",
                "tke.cloud.tencent.com/qgpu-memory": "64",
                "tke.cloud.tencent.com/qgpu-core": "400",
                "tensorstack.dev/nvidia-gpu": "4",
            },
            "allocatable": {"cpu": "4", "memory": "8Gi"},
        },
    }
)
CLAIM = Claim("u", "d", "p", "gpushare", Offer.GPUSHARE, (ContainerClaim("c", 0, Role.MAIN, Slice(1024)),))
