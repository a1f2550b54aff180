"""`aliquot explain`: each kind of refusal in the units people use; and whatever is asked, no card is promised twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clusters.explain import assert_shape, explained, run
from kit.values.anyjson import any_json, atoms, places_in
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    MIXED,
    QGPU,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    SGN,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    XGN,
    Json,
    a_container,
    a_node,
    a_pod,
    asking,
    gpushare_node,
    gpushare_pod,
    on_card,
    replicas,
)

# --- each kind of refusal -----------------------------------------------------------------------------------------

ONLINE, OFFLINE = {APP_CLASS: "online"}, {APP_CLASS: "offline"}
TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}
NOT_READY = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
BROKEN = {"gpushare": "true", "sched.tensorstack.dev/node-alloc-mode": "shared"}
THREE = [a_container(name, {QGPU_MEMORY: 6}) for name in ("a", "b", "c")]


NEEDS_XGN = "labels sched.tensorstack.dev/accelerator=nvidia-gpu and sched.tensorstack.dev/node-alloc-mode=xgn"
IS_BROKEN = (
    'metadata.labels["sched.tensorstack.dev/node-alloc-mode"]: "shared" is not allowed: xgn (exclusive) or sgn (shared)'
)


def holding(limits: Json, **more: Any) -> Json:
    """A Pod that runs on n1, on whichever card there is."""
    return asking(limits, "r", on="n1", **more)


@pytest.mark.parametrize(
    ("reason", "pod", "cluster", "wanted", "had", "never"),
    [
        ("memory", gpushare_pod("p", 5), [gpushare_node("n1", 16), on_card("r", 13, 0)], 5, 3, False),
        ("memory", gpushare_pod("p", 17), [gpushare_node("n1", 16)], 17, 16, True),
        (
            "core",
            asking({QGPU_MEMORY: 1, QGPU_CORE: 60}),
            [a_node("n1", 16, labels=QGPU), holding({QGPU_MEMORY: 1, QGPU_CORE: 60})],
            60,
            40,
            False,
        ),
        (
            "core-greedy",
            asking({QGPU_MEMORY: 1, QGPU_GREEDY: 60}, annotations=OFFLINE),
            [
                a_node("n1", 16, labels=MIXED),
                holding({QGPU_MEMORY: 1, QGPU_GREEDY: 60}, annotations=OFFLINE),
            ],
            60,
            40,
            False,
        ),
        ("slices", asking({QGPU_MEMORY: 1}), [a_node("n1", 3, labels=QGPU)], 1, 0, True),
        ("exclusive", asking({T9K_CARDS: 1}), [a_node("n1", 16, labels=XGN), holding({T9K_CARDS: 1})], 0, 1, False),
        ("cards", asking({T9K_CARDS: 3}), [a_node("n1", 16, 16, labels=XGN)], 3, 2, True),
        ("containers", a_pod("p", *THREE), [a_node("n1", 10, 10, labels=QGPU)], 3, None, True),
        ("mode", asking({T9K_CARDS: 1}), [a_node("n1", 16, labels=SGN)], NEEDS_XGN, None, True),
        (
            "qgpu-node",
            asking({T9K_CARDS: 1}),
            [a_node("n1", 16, labels={**XGN, **QGPU})],
            "T9k's labels for xgn, and label qgpu-device-enable=disable or aliquot.dev/mix-qgpu-and-whole-cards=true",
            None,
            True,
        ),
        (
            "mixed",
            asking({QGPU_MEMORY: 1}, annotations=ONLINE),
            [a_node("n1", 16, labels=QGPU)],
            "label mixed-qgpu-enable=enable",
            None,
            True,
        ),
        (
            "whole-node",
            asking({T9K_NODE: 1}),
            [a_node("n1", 16, labels=XGN), a_pod("web", a_container(), on="n1")],
            0,
            1,
            False,
        ),
        (
            "cpu",
            a_pod("p", a_container("main", {MEM: 1}, requests={"cpu": "1500m"})),
            [gpushare_node("n1", 16, capacity={"cpu": 1})],
            1.5,
            1,
            True,
        ),
        (
            "host-memory",
            a_pod("p", a_container("main", {MEM: 1}, requests={"memory": "2Gi"})),
            [gpushare_node("n1", 16, capacity={"memory": "1Gi"})],
            2,
            1,
            True,
        ),
        ("invalid-node", gpushare_pod(), [a_node("n1", 16, labels=BROKEN)], None, IS_BROKEN, True),
        ("unschedulable", gpushare_pod(), [gpushare_node("n1", 16, unschedulable=True)], None, "cordoned", False),
        ("not-ready", gpushare_pod(), [{**gpushare_node("n1", 16), "status": NOT_READY}], "True", "Unknown", False),
        ("taint", gpushare_pod(), [gpushare_node("n1", 16, taints=[TAINT])], None, "team=ml:NoSchedule", False),
        ("selector", gpushare_pod("p", 1, nodeSelector={"zone": "a"}), [gpushare_node("n1", 16)], "zone=a", None, True),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 16 else "",
)
def test_shortages_are_in_units_of_people(
    tmp_path: Path, reason: str, pod: Json, cluster: list[Json], wanted: object, had: object, never: bool
) -> None:
    (entry,) = explained(tmp_path, [pod], cluster)
    assert not entry["fits"]
    matching = [refusal for refusal in entry["refusals"] if refusal["reason"] == reason]
    assert [(refusal["node"], refusal["wanted"], refusal["had"], refusal["never"]) for refusal in matching] == [
        ("n1", wanted, had, never)
    ]
    assert (
        f"fits none of {len([item for item in cluster if item['kind'] == 'Node'])} node"
        in run(tmp_path, [pod], cluster).stdout
    )


def test_an_unhealthy_card_is_reported(tmp_path: Path) -> None:
    sick = {
        "kind": "ConfigMap",
        "metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"},
        "data": {"gpus": "0"},
    }
    (entry,) = explained(tmp_path, [gpushare_pod()], [gpushare_node("n1", 16), sick])
    assert [(refusal["reason"], refusal["card"]) for refusal in entry["refusals"]] == [("health", 0)]


# --- whatever is asked ---------------------------------------------------------------------------------------------

sizes = st.integers(1, 24)


def pods_of(draw_limits: st.SearchStrategy[Json]) -> st.SearchStrategy[Callable[[str], Json]]:
    containers = st.lists(draw_limits, min_size=1, max_size=2)
    return containers.map(
        lambda limits: lambda name: a_pod(name, *(a_container(f"c{at}", amounts) for at, amounts in enumerate(limits)))
    )


def annotated(pods: st.SearchStrategy[Callable[[str], Json]], key: str, value: str) -> st.SearchStrategy[Any]:
    def add(make: Callable[[str], Json]) -> Callable[[str], Json]:
        return lambda name: {**make(name), "metadata": {"name": name, "annotations": {key: value}}}

    return pods.map(add)


any_pod = st.one_of(
    pods_of(st.fixed_dictionaries({MEM: sizes})),
    annotated(pods_of(st.fixed_dictionaries({MEM: sizes.map(lambda size: 2 * size)})), COUNT, "2"),
    pods_of(st.fixed_dictionaries({QGPU_MEMORY: sizes}, optional={QGPU_CORE: st.integers(1, 99)})),
    annotated(pods_of(st.fixed_dictionaries({QGPU_MEMORY: sizes})), APP_CLASS, "online"),
    annotated(
        pods_of(st.fixed_dictionaries({QGPU_MEMORY: sizes, QGPU_GREEDY: st.integers(1, 50)})), APP_CLASS, "offline"
    ),
    pods_of(st.fixed_dictionaries({T9K_PERCENT: st.integers(1, 100)})),
    pods_of(st.fixed_dictionaries({T9K_CARDS: st.integers(1, 2)})),
)
CARDS = {("both", 0): 24, ("both", 1): 16, ("shared", 0): 11, ("whole", 0): 40, ("whole", 1): 80, ("whole", 2): 80}
CLUSTER = [
    a_node("both", 24, 16, labels={**MIXED, **SGN, "gpushare": "true"}),
    a_node("shared", 11, labels={"gpushare": "true"}),
    a_node("whole", 40, 80, 80, labels=XGN),
]


@settings(max_examples=60, deadline=None)
@given(makers=st.lists(any_pod, min_size=1, max_size=14), policy=st.sampled_from(["binpack", "spread", "fgd", "dense"]))
def test_explain_never_promises_a_card_twice(
    tmp_path_factory: pytest.TempPathFactory, makers: list[Callable[[str], Json]], policy: str
) -> None:
    folder = tmp_path_factory.mktemp("explain")
    answer = explained(folder, [make(f"p{at}") for at, make in enumerate(makers)], CLUSTER, "--priority", policy)
    memory: Counter[tuple[str, int]] = Counter()
    core: Counter[tuple[str, int]] = Counter()
    for entry in answer:
        assert entry["error"] is None
        assert entry["fits"] or entry["refusals"]
        for shares in entry["containers"].values():
            assert len({share["card"] for share in shares}) == len(shares), "slices of one request on distinct cards"
            for share in shares:
                memory[entry["node"], share["card"]] += share["memory_gib"]
                core[entry["node"], share["card"]] += share["core"] or 0
    assert all(taken <= CARDS[card] + 0.1 for card, taken in memory.items()), memory  # two decimals, rounded
    assert all(taken <= 100 for taken in core.values()), core


# --- whatever is written ------------------------------------------------------------------------------------------

anything = any_json(atoms | st.sampled_from(["1", "n1", "Node"]), leaves=5)


def with_one_changed(manifest: Json, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    changed = json.loads(json.dumps(manifest))
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


GOOD = [
    replicas(2, gpushare_pod("", 3)),
    a_pod("two", a_container("a", {QGPU_MEMORY: 3, QGPU_CORE: 30}), a_container("b", {QGPU_MEMORY: 3})),
    asking({T9K_CARDS: 1}, "x", tolerations=[TAINT], nodeSelector={"a": "b"}, on="n1"),
    on_card("running", 3, 0),
    gpushare_node("n1", 16, 16, taints=[TAINT], capacity={"cpu": "8", "memory": "64Gi", MEM: 32}),
    {**a_node("n2", labels={**MIXED, **SGN}, capacity={QGPU_MEMORY: 32, QGPU_CORE: 200}), "apiVersion": "v1"},
    {"kind": "ConfigMap", "metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"}, "data": {"gpus": "0"}},
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_explain_answers_any_input_or_fails_with_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One value anywhere in Pods and cluster becomes any other."""
    manifest = data.draw(st.sampled_from(GOOD))
    changed = with_one_changed(manifest, data.draw(st.sampled_from(places_in(manifest))), data.draw(anything))
    others = [other for other in GOOD if other is not manifest]
    result = run(tmp_path_factory.mktemp("explain"), [changed], [*others, changed], "-o", "json")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    if result.exit_code == 2:
        assert result.stderr.count("\n") == 1
    else:
        for entry in json.loads(result.stdout):
            assert_shape(entry)
