"""The bench of the scheduler, as far as it can be held to account without a cluster: its wire, its audit, its table."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bench.scheduler import report
from bench.scheduler.calls import OURS, Crowd, Verbs, asked, read_filtered
from bench.scheduler.chart import kube_scheduler_config, scheduler_flags
from bench.scheduler.claims import by_claim, cards_of, overbooked, slices_of
from bench.scheduler.contestants import peer
from bench.scheduler.echo import answering_at_once
from bench.scheduler.ground import audit
from bench.scheduler.line import Line, get
from bench.scheduler.main import main
from bench.scheduler.shapes import Shape, gpushare_shapes, mixed_shapes, new_shapes

from aliquot.dialects import parse_pod
from aliquot.model.claim import Claim

VERBS = Verbs(filter="/x/filter", prioritize=None, bind="/x/bind")
MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


@contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """A server that sends these pieces, each by itself, to every client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"],
        [b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 11\r\n\r\nhello ", b"world"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"6\r\nhel", b"lo \r\n5\r\nworld\r", b"\n0\r\n\r\n"],
    ],
)
def test_an_answer_is_read_whole_however_it_is_cut(pieces: list[bytes]) -> None:
    with answering(*pieces) as url, Line(url, timeout=5) as line:
        assert line.call(get("/")) == (200, b"hello world")


def test_an_answer_that_is_cut_short_is_an_error() -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello"
    with answering(cut) as url, Line(url, timeout=5) as line, pytest.raises(ConnectionError):
        line.call(get("/"))


def test_the_program_that_answers_at_once_answers_calls_of_any_length() -> None:
    with answering_at_once() as url, Line(url, timeout=60) as line:
        for names in (["a"], ["a" * 100] * 10_000):
            crowd = Crowd.of([{"metadata": {"name": name}} for name in names], OURS)
            status, body = line.call(asked("/f", b"{}", crowd))
            assert (status, read_filtered(body).fit) == (200, ["bench-00001"])


def test_a_call_is_what_kube_scheduler_sends_with_a_cache_and_without() -> None:
    nodes = [{"metadata": {"name": name, "managedFields": [1]}} for name in ("a", "b")]
    names = json.loads(asked("/f", b'{"kind":"Pod"}', Crowd.of(nodes, OURS)).partition(b"\r\n\r\n")[2])
    assert names == {"Pod": {"kind": "Pod"}, "Nodes": None, "NodeNames": ["a", "b"]}
    whole = Verbs(filter="", prioritize=None, bind="", whole_nodes=True)
    said = json.loads(asked("/f", b"{}", Crowd.of(nodes, whole)).partition(b"\r\n\r\n")[2])
    assert said["NodeNames"] is None
    assert said["Nodes"]["items"] == [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]


def test_the_nodes_that_fit_are_read_from_names_or_from_whole_nodes() -> None:
    assert read_filtered(b'{"NodeNames":["a"],"Nodes":{"items":[{"metadata":{"name":"a"}}]}}').fit == ["a"]
    assert read_filtered(b'{"NodeNames":null,"Nodes":{"items":[{"metadata":{"name":"b"}}]}}').fit == ["b"]
    assert read_filtered(b'{"Nodes":null,"NodeNames":null,"FailedNodes":{"a":"full"},"Error":""}').fit == []


def test_a_peer_is_a_name_its_environment_and_its_command() -> None:
    found = peer("old=LOG_LEVEL=debug QPS=5 ./extender --port={port} a=b", VERBS)
    assert (found.name, found.environment) == ("old", {"LOG_LEVEL": "debug", "QPS": "5"})
    assert found.command == ("./extender", "--port={port}", "a=b")


@pytest.mark.parametrize("text", ["./extender", "=./extender", "old=", "old=QPS=5"])
def test_a_peer_without_name_or_command_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not allowed: NAME="):
        peer(text, VERBS)


def a_pod(name: str, node: str | None, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"nodeName": node} if node else {}}


def on_card(name: str, card: int, gib: int) -> dict[str, Any]:
    return a_pod(name, "n", ALIYUN_COM_GPU_MEM_IDX=str(card), ALIYUN_COM_GPU_MEM_POD=str(gib))


NODES = {"n": {"status": {"capacity": {MEMORY: "160", COUNT: "2"}}}}


def test_full_cards_and_waiting_pods_are_no_fault() -> None:
    pods = [on_card("a", 0, 80), on_card("b", 1, 40), on_card("c", 1, 40), a_pod("waits", None)]
    assert audit(pods, NODES, ["a"], MEMORY, COUNT) == []


def test_a_card_given_out_twice_a_pod_without_a_card_and_a_lost_pod_are_reported() -> None:
    grant = {"containers": [{"cards": [{"index": 1, "memory_mib": 81 * 1024}]}]}
    pods = [
        on_card("a", 0, 80),
        on_card("b", 0, 1),
        a_pod("c", "n", **{"aliquot.dev/grant": json.dumps(grant)}),
        a_pod("bare", "n"),
        a_pod("waits", None),
    ]
    assert sorted(audit(pods, NODES, ["a", "waits"], MEMORY, COUNT)) == [
        "bare is on n and no card is told",
        "n: card 0 gives 81 of 80 GiB",
        "n: card 1 gives 81 of 80 GiB",
        "waits was told to be bound and is not",
    ]


def test_the_table_has_what_must_hold_the_verdict_and_how_many_times_ours_a_peer_is() -> None:
    rows = report.figures(1_000, 5_000, 420, 8, 500)
    results = {
        "ours": {"filter_p50_small": 0.5, "pods_per_s": 100.0},
        "old": {"filter_p50_small": 45.0, "pods_per_s": 25.0, "cold_s": float("inf")},
    }
    lines = report.render(rows, results, "ours").splitlines()
    assert lines[1].split()[-6:] == ["<=", "0.7", "0.50", "ok", "45.00", "90"]
    assert any(line.split()[-4:] == ["100.0", "MISSED", "25.0", "0.25"] for line in lines)
    assert any("never" in line for line in lines)
    assert report.missed(rows, results, "ours") == [
        "Pods/s filter + prioritize + bind, 1,000 nodes, 8 streams: 100.0, must be >= 200"
    ]


def test_bench_report_writes_never_as_null() -> None:
    parsed = json.loads(report.as_json([], {"old": {"cold_s": float("inf")}}, {}))
    assert parsed["results"] == {"old": {"cold_s": None}}


def test_the_trials_are_listed_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(None, ["--list"]) == 0
    assert "throughput" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(None, ["--only", "speed"])
    assert "no trial is called speed; allowed: latency" in capsys.readouterr().err


def test_kube_scheduler_is_measured_with_what_the_chart_ships() -> None:
    config = kube_scheduler_config("http://127.0.0.1:7")
    assert config["extenders"][0]["urlPrefix"] == "http://127.0.0.1:7/aliquot"
    assert "percentageOfNodesToScore" not in config
    assert config["clientConnection"] == {"qps": 200, "burst": 400}
    assert any(flag.startswith("--priority=") for flag in scheduler_flags())


def test_shapes_are_distinct_and_new_ones_are_none_of_them() -> None:
    for shapes in (gpushare_shapes(), mixed_shapes()):
        assert len(set(shapes)) == len(shapes) == 411
        assert set(shapes).isdisjoint(new_shapes(500))
    assert len(set(new_shapes(500, gpushare_only=True))) == 500


@pytest.mark.parametrize("shape", [*mixed_shapes(), *new_shapes(50)])
def test_every_shape_is_a_pod_that_breaks_no_rule(shape: Shape) -> None:
    pod = {
        "metadata": {"name": "p", "annotations": dict(shape.annotations)},
        "spec": {"containers": shape.written()},
    }
    assert isinstance(parse_pod(pod), Claim)


def test_pod_with_a_claim_asks_for_what_the_pod_with_the_resource_asks_for() -> None:
    container = {"name": "c0", "resources": {"limits": {MEMORY: "5"}, "requests": {"cpu": "500m"}}}
    claim, pod = by_claim({"metadata": {"name": "tried-1"}, "spec": {"containers": [container]}}, MEMORY)
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "aliquot.dev", "capacity": {"requests": {"memory": "5Gi"}}}
    (asking,) = pod["spec"]["containers"]
    assert asking["resources"] == {"limits": {}, "requests": {"cpu": "500m"}, "claims": [{"name": "card"}]}
    assert pod["spec"]["resourceClaims"] == [{"name": "card", "resourceClaimName": "tried-1"}]


def test_card_of_which_claims_hold_more_than_there_is_is_named() -> None:
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {MEMORY: "32", COUNT: "2"}}}
    cards = {"n1": cards_of(node, MEMORY, COUNT)}
    (published,) = slices_of("n1", cards["n1"])
    first, second = (device["name"] for device in published["spec"]["devices"])
    held = [(first, "10Gi"), (first, "6Gi"), (second, "10Gi"), (second, "7Gi")]
    results = [{"pool": "n1", "device": name, "consumedCapacity": {"memory": memory}} for name, memory in held]
    claims = [{"status": {"allocation": {"devices": {"results": [result]}}}} for result in results]
    assert overbooked([*claims, {"spec": {}}], cards) == [f"n1/{second} holds {17 * 1024} MiB"]
