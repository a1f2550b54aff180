"""kube-scheduler's form of request is served directly, any other by aiohttp; what strangers send breaks neither."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.services.daemon.http import Limits
from kit.clusters.verbserver import CHUNKED, LAST, PATIENCE, Rig, next_answer, post, rest, run
from kit.running.httpvisits import contexts

# --- whose request it is ----------------------------------------------------------------------------------------------


def test_connection_is_kept_and_given_to_aiohttp_at_the_first_other_request() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with rig.visitor() as (reader, writer):
            answers = []
            for request in (
                post(b"abc"),
                post(b""),
                post(b"x" * 90_000),
                post(b"ab", "/v", "X-Other: 1"),
                post(b"abc"),
            ):
                writer.write(request)
                answers.append(await next_answer(reader))
            return answers

    assert run(scene)[0] == [b"direct 3", b"direct 0", b"direct 90000", b"aiohttp 2", b"aiohttp 3"]


def test_connection_with_tls_is_given_to_aiohttp_too() -> None:
    context, client = contexts()

    async def scenario() -> list[bytes]:
        rig = Rig(Limits(8, unfinished=1 << 20))
        async with rig.serving(context):
            reader, writer = await asyncio.open_connection(*rig.address, ssl=client, server_hostname="aliquot.example")
            answers = []
            for request in (post(b"abc"), post(b"x" * 90_000), CHUNKED + b"2\r\nab\r\n0\r\n\r\n", post(b"abc")):
                writer.write(request)
                answers.append(await next_answer(reader))
            writer.close()
            return answers

    assert asyncio.run(scenario()) == [b"direct 3", b"direct 90000", b"aiohttp 2", b"aiohttp 3"]


OTHER_FORMS = {
    "a chunked body": CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
    "Expect": post(b"abc", "/v", "Expect: 100-continue"),
    "HTTP/1.0": b"POST /v HTTP/1.0\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    "a long header": post(b"abc", "/v", "X-Long: " + "x" * 5000),
}


@pytest.mark.parametrize("request_", OTHER_FORMS.values(), ids=OTHER_FORMS.keys())
def test_other_forms_are_served_by_aiohttp(request_: bytes) -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"ab"), request_, LAST)

    answers, rig = run(scene)
    assert answers.count(b"direct 2") == answers.count(b"aiohttp 3") == 1
    assert rig.bodies[:2] == [b"ab", b"abc"]


def test_unknown_path_and_method_are_answered_by_aiohttp() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        close = b"Host: a\r\nConnection: close\r\n\r\n"
        return [await rig.ask(b"GET /nothing HTTP/1.1\r\n" + close), await rig.ask(b"PUT /v HTTP/1.1\r\n" + close)]

    assert [answer.split()[1] for answer in run(scene)[0]] == [b"404", b"405"]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_pieces_and_pipelining_do_not_change_the_answers(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3000), min_size=1, max_size=6))
    paths = data.draw(st.lists(st.sampled_from(["/v", "/slow"]), min_size=len(sizes), max_size=len(sizes)))
    stream = b"".join(post(b"x" * size, path) for size, path in zip(sizes, paths, strict=True)) + LAST
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def scene(rig: Rig) -> bytes:
        rig.go.set()
        return await rig.ask(*pieces)

    answers, rig = run(scene)
    assert [len(body) for body in rig.bodies] == [*sizes, 0]
    assert answers.count(b"HTTP/1.1 200 OK") == len(sizes) + 1


# --- the end ----------------------------------------------------------------------------------------------------------


def test_request_under_way_is_answered_before_the_end() -> None:
    async def scenario() -> bytes:
        rig = Rig(Limits(8, unfinished=1 << 20))
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(rig.serving())
            reader, writer = await asyncio.open_connection(*rig.address)
            writer.write(post(b"abc", "/slow"))
            await asyncio.wait_for(rig.slow.wait(), PATIENCE)
            asyncio.get_running_loop().call_later(0.05, rig.go.set)
        answer = await rest(reader)
        writer.close()
        return answer

    assert asyncio.run(scenario()).endswith(b"Connection: close\r\n\r\ndirect 3")
