"""Lists that another process receives: all pages come, whatever becomes of that process, and none of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aliquot.adapters.kubernetes import protobuf
from aliquot.adapters.kubernetes.certificates import Pair, make_authority
from aliquot.adapters.kubernetes.credentials import Credential, ExecPlugin
from aliquot.adapters.kubernetes.kube import Server
from aliquot.adapters.kubernetes.receiving import start_receiving
from kit.clusters.apiserver import ApiServer, Fault, half_an_answer, hang_up, status
from kit.clusters.gowriting import blank, page
from kit.clusters.kubeconfigs import b64, config, serving, written
from kit.machines.machine import eventually

# A fork needs a process with one thread, which that of the tests may not be.
PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from aliquot.adapters.kubernetes.kube import ApiError, Kube, find_server
from aliquot.adapters.kubernetes.listing import request_pages
from aliquot.adapters.kubernetes.receiving import start_receiving

server, deed = find_server(Path(sys.argv[1])), sys.argv[2]
received = start_receiving(server, [("User-Agent", "receiver")], "/api/v1/pods", limit=5)
assert received is not None
if deed == "kill":
    os.kill(received._process, signal.SIGKILL)
if deed == "wait":
    sys.stdin.readline()

async def main():
    found = []
    async with Kube(server, agent="ordinary") as kube:
        pages = request_pages(kube, "/api/v1/pods", limit=5, protobuf=True, received=received)
        try:
            while (raw := await pages.take()) is not None:
                found.append([item["metadata"]["name"] for item in json.loads(raw)["items"]])
                if deed == "leave":
                    break
        except ApiError as error:
            found.append([str(error.status)])
        pages.close()
    return found

found = asyncio.run(main())
try:
    os.waitpid(-1, 0)
    left = True
except ChildProcessError:
    left = False
print(json.dumps({"found": found, "left": left}))
"""


# Nobody answers. Either the first list is given up, and the program rests; or the program is killed.
SILENT = """
import asyncio, json, os, signal, socket, sys, time
from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.adapters.kubernetes.listing import request_pages
from aliquot.adapters.kubernetes.receiving import start_receiving

deaf = socket.create_server(("127.0.0.1", 0))
server = Server(f"http://127.0.0.1:{deaf.getsockname()[1]}")
nodes = start_receiving(server, [], "/api/v1/nodes", limit=5)
pods = start_receiving(server, [], "/api/v1/pods", limit=5, beside=nodes)
print(json.dumps([nodes._process, pods._process]), flush=True)
if sys.argv[1] == "kill":
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with Kube(server, agent="ordinary") as kube:
        pages = request_pages(kube, "/api/v1/nodes", limit=5, protobuf=True, received=nodes)
        await asyncio.sleep(0.3)
        pages.close()
        began = time.process_time()
        await asyncio.sleep(1)
        print(time.process_time() - began)

asyncio.run(main())
pods.close()
"""


def a_page(at: int, more: str = "") -> bytes:
    pods = [blank("Pod", metadata=blank("ObjectMeta", name=f"pod-{at}"))]
    return page("PodList", blank("PodList", metadata=blank("ListMeta", **{"continue": more}), items=pods))


def in_chunks(body: bytes, size: int = 50) -> Fault:
    async def answer(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        for start in range(0, len(body), size):
            await answer.write(body[start : start + size])
        await answer.write_eof()
        return answer

    return answer


def whole(body: bytes) -> Fault:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    return answer


def pages(count: int) -> list[Fault]:
    """Of a list with one Pod on each."""
    return [in_chunks(a_page(at, f"t{at + 1}" if at + 1 < count else "")) for at in range(count)]


def taken(
    folder: Path,
    answers: list[Fault],
    deed: str = "",
    *,
    release: str | None = "32",
    authority: Pair | None = None,
    meanwhile: Callable[[ApiServer], Awaitable[None]] | None = None,
) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """The names on each page; and who requested which page, by its token."""

    async def scene() -> tuple[list[list[str]], list[tuple[str, str]]]:
        async with ApiServer(None if authority is None else serving(authority, "127.0.0.1")) as server:
            server.faults.extend(answers)
            server.tokens = {"secret"}
            server.release = None if release is None else {"major": "1", "minor": release}
            trust = {} if authority is None else {"certificate-authority-data": b64(authority.certificate)}
            file = written(folder, config({"server": server.url, **trust}, {"token": "secret"}))
            words = (sys.executable, "-c", PROGRAM, str(file), deed)
            pipe = asyncio.subprocess.PIPE
            program = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
            if meanwhile is not None:
                await meanwhile(server)
            out, _ = await program.communicate(b"\n")
            said: dict[str, Any] = json.loads(out)
            assert not said["left"], "no process is left"
            calls = [(call.headers["User-Agent"], call.query.get("continue", "")) for call in server.calls]
            assert {call.query["limit"] for call in server.calls if call.query} <= {"5"}
            return said["found"], calls

    return asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("release", ["32", None])
def test_another_process_receives_all_pages(tmp_path: Path, release: str | None) -> None:
    found, calls = taken(tmp_path, pages(5), release=release)
    assert found == [[f"pod-{at}"] for at in range(5)]
    assert calls == [("receiver", token) for token in ("", "t1", "t2", "t3", "t4")]


def test_pages_come_by_tls(tmp_path: Path) -> None:
    found, calls = taken(tmp_path, pages(2), authority=make_authority("test", time.time(), 1e6))
    assert found == [["pod-0"], ["pod-1"]]
    assert calls == [("receiver", ""), ("receiver", "t1")]


def test_a_page_that_is_json_or_has_a_length_is_received_too(tmp_path: Path) -> None:
    found, calls = taken(tmp_path, [whole(b'{"metadata":{"continue":"t1"},"items":[]}'), whole(a_page(1))])
    assert found == [[], ["pod-1"]]
    assert calls == [("receiver", ""), ("receiver", "t1")]


def test_a_server_that_closes_each_connection_is_connected_to_again(tmp_path: Path) -> None:
    """As load balancers and proxies do, and an API server that is about to end."""

    def closing(body: bytes) -> Fault:
        async def answer(request: web.Request) -> web.StreamResponse:
            answer = web.Response(body=body)
            answer.force_close()
            return answer

        return answer

    found, calls = taken(tmp_path, [closing(a_page(0, "t1")), closing(a_page(1, "t2")), closing(a_page(2))])
    assert found == [["pod-0"], ["pod-1"], ["pod-2"]]
    assert calls == [("receiver", token) for token in ("", "t1", "t2")]


def test_pages_that_are_not_taken_have_few_bytes(tmp_path: Path) -> None:
    """One of 40 MB waits, the next for its turn, and a third is requested."""
    names = [f"{at}" * 40_000_000 for at in range(5)]
    bodies = [
        page(
            "PodList",
            blank(
                "PodList",
                metadata=blank("ListMeta", **{"continue": f"t{at + 1}" if at < 4 else ""}),
                items=[blank("Pod", metadata=blank("ObjectMeta", name=name))],
            ),
        )
        for at, name in enumerate(names)
    ]

    async def counted(server: ApiServer) -> None:
        while len(server.calls) < 3:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        assert len(server.calls) == 3

    found, calls = taken(tmp_path, [whole(body) for body in bodies], "wait", meanwhile=counted)
    assert [name[:1] for (name,) in found] == ["0", "1", "2", "3", "4"]
    assert {agent for agent, _ in calls} == {"receiver"}


def test_a_page_of_many_megabytes_is_received(tmp_path: Path) -> None:
    long = "x" * 40_000_000
    pods = [blank("Pod", metadata=blank("ObjectMeta", name=long))]
    body = page("PodList", blank("PodList", items=pods))
    found, calls = taken(tmp_path, [in_chunks(body, 1 << 20)])
    assert found == [[long]]
    assert calls == [("receiver", "")]


def a_list(count: int) -> bytes:
    """Of so many Pods, each of a megabyte."""
    pods = [
        blank("Pod", metadata=blank("ObjectMeta", name=f"pod-{at}", labels={"x": "x" * 1_000_000}))
        for at in range(count)
    ]
    return page("PodList", blank("PodList", metadata=blank("ListMeta", resourceVersion="7"), items=pods))


@pytest.mark.parametrize("form", [lambda body: in_chunks(body, 30_000), whole], ids=["in chunks", "with a length"])
def test_a_newer_api_server_is_asked_once_for_the_whole_list(tmp_path: Path, form: Callable[[bytes], Fault]) -> None:
    found, calls = taken(tmp_path, [form(a_list(20))], release="33+")
    assert len(found) > 5, "taken as it comes"
    assert [name for names in found for name in names] == [f"pod-{at}" for at in range(20)]
    assert calls == [("receiver", "")]


def test_a_whole_list_comes_by_tls(tmp_path: Path) -> None:
    authority = make_authority("test", time.time(), 1e6)
    found, calls = taken(tmp_path, [in_chunks(a_list(5), 30_000)], release="36", authority=authority)
    assert [name for names in found for name in names] == [f"pod-{at}" for at in range(5)]
    assert calls == [("receiver", "")]


@pytest.mark.parametrize(
    "failure", [status(500), hang_up, half_an_answer, whole(b'{"metadata":{},"items":[]}'), whole(a_page(1)[:-20])]
)
def test_pages_are_requested_where_nothing_came_of_the_whole_list(tmp_path: Path, failure: Fault) -> None:
    found, calls = taken(tmp_path, [failure, *pages(2)], release="36")
    assert found == [["pod-0"], ["pod-1"]]
    assert calls == [("receiver", ""), ("ordinary", ""), ("ordinary", "t1")]


@pytest.mark.parametrize("cut", [5_000_000, 5_000_010])
def test_a_whole_list_that_breaks_off_is_expired(tmp_path: Path, cut: int) -> None:
    """No API server knows the token of a page that was cut here: the reflector lists anew."""
    found, calls = taken(tmp_path, [whole(a_list(20)[:cut])], release="36")
    assert found[-1] == ["410"]
    assert [name for names in found[:-1] for name in names] == [f"pod-{at}" for at in range(len(found[:-1]) * 3)]
    assert calls == [("receiver", "")]


def test_a_whole_list_that_nobody_takes_waits(tmp_path: Path) -> None:
    """Not all of 150 MB is kept in memory; and all of it comes in the end."""
    sent = 0

    async def slowly(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        body = a_list(150)
        for start in range(0, len(body), 1_000_000):
            await answer.write(body[start : start + 1_000_000])
            sent = start + 1_000_000
        await answer.write_eof()
        return answer

    async def counted(server: ApiServer) -> None:
        before = -1
        while before != sent or not sent:
            before = sent
            await asyncio.sleep(0.5)
        assert sent < 100_000_000

    found, calls = taken(tmp_path, [slowly], "wait", release="36", meanwhile=counted)
    assert len([name for names in found for name in names]) == 150
    assert calls == [("receiver", "")]


@pytest.mark.parametrize("failure", [status(500), status(429), hang_up, half_an_answer, whole(a_page(1)[:-20])])
def test_the_rest_is_requested_in_the_ordinary_way_after_a_failure(tmp_path: Path, failure: Fault) -> None:
    first, second, third = pages(3)
    found, calls = taken(tmp_path, [first, failure, second, third])
    assert found == [["pod-0"], ["pod-1"], ["pod-2"]]
    assert calls == [("receiver", ""), ("receiver", "t1"), ("ordinary", "t1"), ("ordinary", "t2")]


def test_the_list_is_requested_in_the_ordinary_way_where_that_process_was_killed(tmp_path: Path) -> None:
    def anyone(request: web.Request) -> Awaitable[web.StreamResponse]:
        return pages(2)[1 if request.query.get("continue") else 0](request)

    found, calls = taken(tmp_path, [anyone] * 4, "kill")
    assert found == [["pod-0"], ["pod-1"]]
    assert calls[-1] == ("ordinary", "t1")


def test_that_process_ends_with_the_list_that_is_not_wanted(tmp_path: Path) -> None:
    found, _ = taken(tmp_path, pages(9), "leave")
    assert found == [["pod-0"]]


def test_pages_that_are_not_taken_are_few(tmp_path: Path) -> None:
    """Two wait, one waits for its turn, and the next is requested."""

    async def counted(server: ApiServer) -> None:
        while len(server.calls) < 4:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        assert len(server.calls) == 4

    found, calls = taken(tmp_path, pages(8), "wait", meanwhile=counted)
    assert found == [[f"pod-{at}"] for at in range(8)]
    assert {agent for agent, _ in calls} == {"receiver"}


def test_list_that_is_given_up_costs_nothing(tmp_path: Path) -> None:
    """The loop was told again and again that the channel of the first one had ended: the second fork had it too."""
    done = subprocess.run([sys.executable, "-c", SILENT, ""], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout.split("\n")[1]) < 0.3


def test_both_processes_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """Not after the minute that they wait for an answer. Whoever reads their output waits for its end."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SILENT, "kill"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert time.monotonic() - began < 30
    eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in json.loads(done.stdout)))


def test_where_no_file_can_be_made_in_memory_lists_are_requested_in_the_ordinary_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: str) -> int:
        raise PermissionError(13, "vm.memfd_noexec=2")

    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(os, "memfd_create", refused)
    assert start_receiving(Server("http://127.0.0.1:1"), [], "/api/v1/pods", limit=5) is None


@pytest.mark.parametrize(
    "server",
    [
        Server("http://127.0.0.1:1", proxy="http://127.0.0.1:2"),
        Server("http://127.0.0.1:1", credential=Credential(plugin=ExecPlugin(("login",)))),
        Server("http://127.0.0.1:1", credential=Credential(file=Path("/nonexistent/token"))),
        Server("http://127.0.0.1:1", credential=Credential("a\nb")),
    ],
)
def test_what_needs_more_than_a_connection_and_a_token_is_left_to_the_ordinary_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert start_receiving(server, [], "/api/v1/pods", limit=5) is None


def test_a_process_with_threads_is_not_forked() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert start_receiving(Server("http://127.0.0.1:1"), [], "/api/v1/pods", limit=5) is None
    finally:
        over.set()
        thread.join()


def test_lists_are_requested_in_the_ordinary_way_without_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(protobuf, "_LIBRARY", tmp_path / "liblists.so")
    assert start_receiving(Server("http://127.0.0.1:1"), [], "/api/v1/pods", limit=5) is None
