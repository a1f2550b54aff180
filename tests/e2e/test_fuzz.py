"""What is not kube-scheduler's, at the extender's door: a clear answer, no traceback, and memory stays flat."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.values.deepjson import MANAGED, with_deep_fields
from testbed import objects
from testbed.cards import CARD_GIB, Start, assert_no_trace, board_of, gpushare_node, wait_leads, whole_card
from testbed.plane import HOST, ControlPlane
from testbed.processes import wait_until
from testbed.programs.product import AliquotScheduler

VERBS = [f"/aliquot/{verb}" for verb in ("filter", "prioritize", "bind", "preempt")]
PEERS = ["/gpushare-scheduler/filter", "/gpushare-scheduler/bind", "/scheduler/priorities", "/scheduler/bind"]

_DRA = "resource.k8s.io"
POD = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}]},
}
ARGS: dict[str, Any] = {"Pod": POD, "Nodes": None, "NodeNames": ["n"]}
BIND: dict[str, Any] = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n"}


@pytest.fixture
def ours(clean: ControlPlane, aliquot_scheduler: Start) -> Iterator[AliquotScheduler]:
    """It still answers in the end, and its log has no error of its own."""
    objects.create(clean, gpushare_node("n"))
    scheduler = aliquot_scheduler()
    wait_leads(scheduler)
    yield scheduler
    assert scheduler.post("/aliquot/filter", ARGS)["NodeNames"] == ["n"]
    assert_no_trace(scheduler)
    assert max(map(len, scheduler.log.splitlines())) < 10_000  # nor can anybody fill the disk with it


def _limits(amount: object, key: str = "aliyun.com/gpu-mem") -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {key: amount}}}
    return ARGS | {"Pod": POD | {"spec": {"containers": [container]}}}


def _nested(depth: int) -> bytes:
    return b'{"Pod":' + b'{"metadata":' * depth + b"1" + b"}" * (depth + 1)


def _bodies() -> dict[str, bytes]:
    """Everything that is not what is expected, by what it is."""
    args, bind = json.dumps(ARGS).encode(), json.dumps(BIND).encode()
    said: dict[str, object] = {
        "null": None,
        "a number": 1,
        "a list": [ARGS],
        "no keys": {},
        "unknown fields": ARGS | BIND | {"More": {"a": [1, 2, {"b": None}]}},
        "names that are numbers": ARGS | {"NodeNames": [1, 2]},
        "names that are one name": ARGS | {"NodeNames": "n"},
        "no names": ARGS | {"NodeNames": []},
        "a name 1000 times": ARGS | {"NodeNames": ["n"] * 1000},
        "names of nobody": ARGS | {"NodeNames": ["", "x", "n", "é\u0000", "n" * 5000]},
        "nodes that are none": ARGS | {"NodeNames": None, "Nodes": {"items": [1, None, "n"]}},
        "nodes without names": ARGS | {"NodeNames": None, "Nodes": {"items": [{}, {"metadata": {}}]}},
        "a Pod that is a list": ARGS | {"Pod": []},
        "a Pod that is empty": ARGS | {"Pod": {}},
        "containers that are text": ARGS | {"Pod": POD | {"spec": {"containers": "main"}}},
        "labels that are numbers": ARGS | {"Pod": POD | {"metadata": {"labels": {"a": 1}}}},
        "binds with numbers": dict.fromkeys(BIND, 1),
        "binds with nulls": dict.fromkeys(BIND),
        "binds with nothing": dict.fromkeys(BIND, ""),
        "a path for a name": BIND | {"PodName": "../../../../version?x="},
        "a path for a namespace": BIND | {"PodNamespace": "kube-system/secrets/x#", "PodName": "y"},
        "a name of odd characters": BIND | {"PodName": "p q\r\nHost: x\u0000é"},
        "a very long name": BIND | {"PodName": "p" * 100_000},
        "a uid of odd characters": BIND | {"PodUID": "\u0000é/../"},
        "victims that are none": ARGS | {"NodeNameToMetaVictims": {"n": 1}},
        "victims of nobody": ARGS | {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "x"}]}, "x": {"Pods": None}}},
    }
    amounts = ["-1", "", "x", "1e400", "9" * 400, 10**30, 1e308, -1, 0, "0", 0.5, True, None, {}, "1Ki", "99999999999"]
    odd = {f"{amount!r:.20} GiB": _limits(amount) for amount in amounts} | {
        f"{amount!r:.20} percent": _limits(amount, "tensorstack.dev/nvidia-gpu-percent") for amount in amounts
    }
    raw = {
        "nothing": b"",
        "spaces": b"   ",
        "text": b"hello",
        "truncated": args[: len(args) // 2],
        "a truncated bind": bind[:-3],
        "two of them": args + args,
        "not UTF-8": args.replace(b'"p"', b'"\xff\xfe"'),
        "not UTF-8 in a bind": bind.replace(b'"p"', b'"\xff\xfe"'),
        "half a surrogate": args.replace(b'"p"', b'"\\ud800"'),
        "UTF-16": json.dumps(ARGS).encode("utf-16"),
        "zeros": bytes(1000),
        "nested": _nested(100),
        "nested deeply": _nested(100_000),
        "lists nested deeply": b'{"Pod":' + b"[" * 100_000,
        "nodes nested deeply": b'{"Pod":{"metadata":{}},"Nodes":{"items":['
        + b'{"a":' * 100_000
        + b"1"
        + b"}" * 100_000
        + b"]}}",
        "10 MB of names": json.dumps(ARGS | {"NodeNames": [f"node-{n:010d}" for n in range(550_000)]}).encode(),
        "10 MB of text": b'{"Pod":{"metadata":{"name":"' + b"x" * (10 << 20) + b'"}},"NodeNames":["n"]}',
        "10 MB of labels": json.dumps(
            ARGS | {"Pod": POD | {"metadata": {"labels": {f"k{n:012d}": "v" for n in range(400_000)}}}}
        ).encode(),
        "10 MB of nothing": b" " * (10 << 20),
        "70 MB": b"x" * (70 << 20),
    }
    return {name: json.dumps(body).encode() for name, body in (said | odd).items()} | raw


BODIES = _bodies()


def _checked(path: str, name: str, status: int, answer: bytes) -> None:
    what = f"{path} with {name}: {status} {answer[:300]!r}"
    assert status == 200, what
    said = json.loads(answer)
    verb = path.rpartition("/")[2]
    if verb in ("prioritize", "priorities"):
        assert isinstance(said, list), what
    elif verb == "preempt":
        assert isinstance(said, dict), what
    else:
        assert isinstance(said["Error"], str), what
        assert "internal error" not in said["Error"], what
        assert len(said["Error"]) < 2000, what
        assert verb != "bind" or said["Error"], what


@pytest.mark.parametrize("path", VERBS)
def test_whatever_the_body_is_the_answer_is_200_and_clear(ours: AliquotScheduler, path: str) -> None:
    for name, body in BODIES.items():
        _checked(path, name, *ours.ask("POST", path, body, timeout=30))


def test_bad_bodies_under_peer_prefixes(ours: AliquotScheduler) -> None:
    for path in PEERS:
        for name, body in BODIES.items():
            if len(body) < 1 << 20:
                _checked(path, name, *ours.ask("POST", path, body))


def test_keys_are_read_in_any_case(clean: ControlPlane, ours: AliquotScheduler) -> None:
    (pod,) = objects.create(clean, whole_card("p"))
    assert ours.post("/aliquot/filter", {"pod": pod, "nodenames": ["n"]})["NodeNames"] == ["n"]
    assert ours.post("/aliquot/prioritize", {"POD": pod, "nodeNames": ["n"]}) == [{"Host": "n", "Score": 2}]
    who = pod["metadata"]
    asked = {"podName": "p", "podnamespace": "default", "PODUID": who["uid"], "node": "n"}
    assert ours.post("/aliquot/bind", asked) == {"Error": ""}
    objects.delete_pod(clean, "p")


def test_an_empty_cluster_answers_too(clean: ControlPlane, aliquot_scheduler: Start) -> None:
    ours = aliquot_scheduler()
    assert ours.post("/aliquot/filter", ARGS)["FailedNodes"] == {
        "n": "aliquot has not seen this node yet (aliquot:unknown-node)"
    }
    assert ours.post("/aliquot/prioritize", ARGS) == [{"Host": "n", "Score": 0}]
    assert_no_trace(ours)


def test_a_name_that_is_a_path_reaches_nothing_else_of_the_api(clean: ControlPlane, ours: AliquotScheduler) -> None:
    for name in ("../../../../api/v1/nodes/n", "x/../../secrets", "a%2fb", "..", "x?y", "x#y"):
        for field in ("PodName", "PodNamespace", "Node"):
            said = ours.post("/aliquot/bind", BIND | {field: name})["Error"]
            assert f"{field}: " in said, said


def test_pod_and_claim_that_are_nested_very_deep_hide_no_other(clean: ControlPlane, ours: AliquotScheduler) -> None:
    """A user needs the right to create one of them in any namespace; neither needs a GPU."""
    plain = objects.pod("deep", {})
    plain["metadata"]["managedFields"] = [{**MANAGED[0], "apiVersion": "v1", "time": "2026-01-01T00:00:00Z"}]
    config = {"opaque": {"driver": "other.example", "parameters": {"a": "DEEP"}}}
    devices = {"requests": [{"name": "a", "exactly": {"deviceClassName": "other.example"}}], "config": [config]}
    claim = {"apiVersion": f"{_DRA}/v1", "kind": "ResourceClaim", "metadata": {"name": "deep"}}
    clean.api("POST", f"/apis/{_DRA}/v1/namespaces/default/resourceclaims",
              with_deep_fields(claim | {"spec": {"devices": devices}}, 1200))  # fmt: skip
    clean.api("POST", "/api/v1/namespaces/default/pods", with_deep_fields(plain, 5000))
    objects.create(clean, whole_card("after"))
    bound = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "after"},
        "target": {"kind": "Node", "name": "n"},
    }
    clean.api("POST", "/api/v1/namespaces/default/pods/after/binding", bound)
    wait_until(lambda: sum(board_of(ours).values()) == CARD_GIB * 1024, 20, "the later Pod is seen")
    clean.api("DELETE", f"/apis/{_DRA}/v1/namespaces/default/resourceclaims/deep")
    for name in ("deep", "after"):
        objects.delete_pod(clean, name)


def test_unknown_verb_gets_http_status(ours: AliquotScheduler) -> None:
    assert ours.ask("POST", "/aliquot/nothing", b"{}")[0] == 404
    assert ours.ask("GET", "/aliquot/filter")[0] == 405
    assert ours.ask("POST", "/version", b"{}")[0] == 405
    assert ours.ask("GET", "/gpushare-scheduler/inspect/x%2f..%2fy")[0] == 404
    assert ours.ask("GET", "/" + "x" * 20_000)[0] in (400, 404, 414, 431)


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"POST /aliquot/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"POST /aliquot/filter HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /aliquot/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"POST /aliquot/bind HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"POST /aliquot/filter HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /aliquot/filter HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 4\r\n\r\nabcd",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS, to a port that speaks HTTP
        b"\x00\xff\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /aliquot/filter HTTP/9.9\r\n\r\n",
        b"POST /aliquot/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /aliquot/filter HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"",
    ],
)
def test_broken_http_makes_no_traceback(ours: AliquotScheduler, bytes_sent: bytes) -> None:
    with socket.create_connection((HOST, ours.port), timeout=5) as line:
        line.sendall(bytes_sent)
        line.shutdown(socket.SHUT_WR)
        answer = line.recv(65536)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")), answer[:100]


def test_a_small_body_that_unpacks_into_a_huge_one_is_refused(ours: AliquotScheduler) -> None:
    body = gzip.compress(b" " * (400 << 20), 1)
    before = _resident(ours)
    with socket.create_connection((HOST, ours.port), timeout=60) as line:
        head = b"POST /aliquot/filter HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        line.sendall(head % len(body) + body)
        line.recv(65536)
    assert _resident(ours) - before < 200


def test_memory_is_flat_after_500_bad_bodies(ours: AliquotScheduler) -> None:
    """Each round ends alike: how much the allocator keeps depends on the last large bodies."""
    rng = random.Random(1)
    small = [body for body in BODIES.values() if len(body) < 64 << 20]
    calls = [(path, body) for path in VERBS for body in small]
    some = rng.sample(calls, 250)

    def a_round(bodies: list[tuple[str, bytes]]) -> float:
        for path, body in bodies:
            ours.ask("POST", path, body, timeout=30)
        return _resident(ours)

    a_round(calls)  # every one of them has been seen
    before = max(a_round(some), a_round(some))
    after = min(a_round(some), a_round(some))
    assert after - before < 20, f"{before:.0f} MB before, {after:.0f} MB after"


def _resident(scheduler: AliquotScheduler) -> float:
    """MB."""
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{scheduler.pid}/status").read_text())
    assert resident is not None
    return int(resident[1]) / 1024


def test_bind_continues_after_client_disconnects(clean: ControlPlane, ours: AliquotScheduler) -> None:
    (pod,) = objects.create(clean, whole_card("p"))
    who = pod["metadata"]
    body = json.dumps(BIND | {"PodUID": who["uid"]}).encode()
    with socket.create_connection((HOST, ours.port), timeout=5) as line:
        line.sendall(f"POST /aliquot/bind HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    wait_until(lambda: objects.bound_to(clean, "p") == "n", 5, "the Pod is bound all the same")
    objects.delete_pod(clean, "p")
