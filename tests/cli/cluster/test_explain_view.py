"""`aliquot explain` for people: whether waiting helps at first sight, every reason once, a few lines on any cluster."""

from __future__ import annotations

from pathlib import Path

from kit.clusters.explain import run
from kit.values.manifests import (
    MIXED,
    QGPU,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
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


def lines(folder: Path, pods: list[Json], cluster: list[Json], *options: str) -> list[str]:
    return run(folder, pods, cluster, *options).stdout.splitlines()


def test_a_pod_that_fits_takes_one_line(tmp_path: Path) -> None:
    two = a_pod("p", a_container("a", {QGPU_MEMORY: 3, QGPU_CORE: 30}), a_container("b", {QGPU_MEMORY: 14}))
    assert lines(tmp_path, [two], [a_node("n1", 16, 16, labels=QGPU)]) == [
        "default/p  n1  a: GPU 1 (3 GiB, 30%); b: GPU 0 (14 GiB)",
        "",
        "all 1 fit",
    ]


def test_whole_cards_and_greedy_compute_are_named(tmp_path: Path) -> None:
    offline = asking(
        {QGPU_MEMORY: 4, QGPU_GREEDY: 50}, "off", annotations={"tke.cloud.tencent.com/app-class": "offline"}
    )
    cluster = [a_node("mixed", 16, labels=MIXED), a_node("x", 16, labels=XGN)]
    assert lines(tmp_path, [offline, asking({T9K_CARDS: 1}, "whole")], cluster)[:2] == [
        "default/off    mixed  main: GPU 0 (4 GiB, greedy 50%)",
        "default/whole  x      main: GPU 0 (16 GiB, whole)",
    ]


def test_busy_closed_and_never_are_separate_groups(tmp_path: Path) -> None:
    cluster = [
        gpushare_node("busy", 16),
        on_card("r", 12, 0, "busy"),
        gpushare_node("closed", 16, unschedulable=True),
        gpushare_node("small", 4),
        a_node("other", 16, taints=[{"key": "team", "value": "ml", "effect": "NoSchedule"}]),
    ]
    assert lines(tmp_path, [gpushare_pod("p", 5)], cluster) == [
        "default/p  fits none of 4 nodes",
        "  1 node is busy: it could take the Pod when others leave",
        "    1  GPU memory: needs 5 GiB per card; at most 4 GiB free (1 card)  [busy]",
        "  1 node is closed to the Pod for now",
        "    1  cordoned  [closed]",
        "  2 nodes will not take the Pod as they are",
        "    1  GPU memory: needs 5 GiB per card; the largest card has 4 GiB (1 card)  [small]",
        "    1  does not serve gpushare Pods: requires capacity aliyun.com/gpu-mem, or label gpushare=true and cards"
        " that the agent found  [other]",
        "    1  the Pod does not tolerate the taint team=ml:NoSchedule  [other]",
        "",
        "0 of 1 fit",
    ]


def test_card_that_is_busy_and_too_small_is_never(tmp_path: Path) -> None:
    """Its compute comes free, its memory does not grow."""
    running = asking({QGPU_MEMORY: 1, QGPU_CORE: 90}, "r", on="n1")
    printed = lines(tmp_path, [asking({QGPU_MEMORY: 20, QGPU_CORE: 30})], [a_node("n1", 16, labels=QGPU), running])
    assert printed[1] == "  1 node will not take the Pod as it is"


def test_node_with_one_card_that_may_come_free_is_busy(tmp_path: Path) -> None:
    printed = lines(tmp_path, [gpushare_pod("p", 5)], [gpushare_node("n1", 4, 16), on_card("r", 12, 1)])
    assert printed[1:4] == [
        "  1 node is busy: it could take the Pod when others leave",
        "    1  GPU memory: needs 5 GiB per card; at most 4 GiB free (1 card)  [n1]",
        "    1  GPU memory: needs 5 GiB per card; the largest card has 4 GiB (1 card)  [n1]",
    ]


def test_replicas_that_do_not_fit_for_the_same_reasons_are_reported_together(tmp_path: Path) -> None:
    printed = lines(tmp_path, [replicas(202, gpushare_pod("", 8))], [gpushare_node("n1", 16)])
    assert printed[:3] == [
        "default/web-0    n1  main: GPU 0 (8 GiB)",
        "default/web-1    n1  main: GPU 0 (8 GiB)",
        "default/web-2 ... default/web-201 (200 Pods)  fit none of 1 node",
    ]
    assert printed[-1] == "2 of 202 fit"
    assert len(printed) == 7


def test_pods_of_other_shapes_get_their_own_paragraph(tmp_path: Path) -> None:
    printed = lines(tmp_path, [gpushare_pod("a", 17), gpushare_pod("b", 18)], [gpushare_node("n1", 16)])
    assert [line for line in printed if "fits none" in line] == [
        "default/a  fits none of 1 node",
        "default/b  fits none of 1 node",
    ]


def test_five_hundred_nodes_take_no_more_lines_than_five(tmp_path: Path) -> None:
    """Whatever their own labels, all lack the same one."""
    cluster = [gpushare_node(f"n{at}", 16, labels={"kubernetes.io/hostname": f"n{at}"}) for at in range(500)]
    pod = gpushare_pod("p", 1, nodeSelector={"kubernetes.io/hostname": "gone"})
    assert lines(tmp_path, [pod], cluster)[1:3] == [
        "  500 nodes will not take the Pod as they are",
        "    500  the Pod requires kubernetes.io/hostname=gone  [n0, n1, n2, ...]",
    ]


def test_the_rarest_reasons_are_summed_up(tmp_path: Path) -> None:
    def owned(at: int) -> Json:
        return gpushare_node(f"n{at}", 16, taints=[{"key": "owner", "value": f"t{at}", "effect": "NoSchedule"}])

    printed = lines(tmp_path, [gpushare_pod()], [owned(at) for at in range(30)])
    assert printed[-3] == "    22  for 22 more reasons (-o json shows them all)"
    assert len(printed) == 13


def test_the_same_assumption_about_many_nodes_is_noted_once(tmp_path: Path) -> None:
    cluster = [a_node(f"x{at}", labels=XGN, capacity={T9K_CARDS: 1}) for at in range(9)]
    assert run(tmp_path, [asking({T9K_CARDS: 1})], cluster).stderr.splitlines() == [
        "note: x0, x1, x2 and 6 more: the memory of the cards is not known: 16 GiB each is assumed"
    ]


def test_a_pod_that_is_not_ours_is_counted_apart(tmp_path: Path) -> None:
    printed = lines(tmp_path, [gpushare_pod("a"), a_pod("web", a_container())], [gpushare_node()])
    assert printed[1:] == [
        "default/web  -  (requests no GPU in any of the dialects: Aliquot does not place it)",
        "",
        "all 1 fit; 1 requests no shared GPU",
    ]


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    printed = run(tmp_path, [gpushare_pod("a\x1b[31m\nb")], [gpushare_node()]).stdout
    assert printed.startswith("default/a\\x1b[31m\\nb  is not allowed\n")
