"""vLLM as a server has it: its asynchronous engine, requests by the clock or by clients, prompts as token numbers.

usage: vllm_serve.py CONTROL_FILE SAMPLES_FILE --model FOLDER [--use FRACTION] [--eager]
"""
# mypy: ignore-errors

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from bench.gpu.engines.programs import steer
from bench.gpu.engines.programs.vllm_options import engine_options, sampling

VOCABULARY = 128_256


class Server:
    """Requests in flight, and what they wrote down."""

    def __init__(self, engine, samples: steer.Samples) -> None:
        self.engine, self.samples = engine, samples
        self.count = 0
        self.flying: set[asyncio.Task] = set()

    def begin(self, order: steer.Order, asked: list[list[int]], due: float) -> None:
        task = asyncio.create_task(self._answer(asked[self.count % steer.PROMPTS], order.tokens, due, self.count))
        self.count += 1
        self.flying.add(task)
        task.add_done_callback(self.flying.discard)

    async def _answer(self, prompt: list[int], tokens: int, due: float, number: int) -> None:
        moments, numbers = [], []
        given = self.engine.generate({"prompt_token_ids": prompt}, sampling(tokens, delta=True), f"r{number}")
        async for output in given:
            fresh = list(output.outputs[0].token_ids)
            moments += [time.monotonic()] * len(fresh)
            numbers += fresh
        self.samples.request(due, number % steer.PROMPTS, moments, numbers)

    async def serve(self, control: steer.Control) -> None:
        told, pace = steer.Order(), steer.Pace(steer.Order(rate=1.0))
        asked: list[list[int]] = []
        while (order := control.order()).word != "stop":
            if order != told:
                told, pace, asked = order, steer.Pace(order), steer.prompts(order.prompt, VOCABULARY)
            now = time.monotonic()
            if order.word == "idle":
                await asyncio.sleep(0.01)
            elif not order.rate:
                while len(self.flying) < order.clients:
                    self.begin(order, asked, time.monotonic())
                await asyncio.wait(self.flying, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            elif pace.due > now:
                await asyncio.sleep(min(0.02, pace.due - now))
            else:
                self.begin(order, asked, pace.due)
                pace.advance()


async def run(options: argparse.Namespace) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_options(options)))
    server = Server(engine, steer.Samples(options.samples))
    warm = steer.Order("run", tokens=8, prompt=512)
    for due in (time.monotonic(),) * 4:
        server.begin(warm, steer.prompts(warm.prompt, VOCABULARY), due)
    await asyncio.gather(*server.flying)
    steer.ready()
    await server.serve(steer.Control(options.control))
    engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("control", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--use", type=float, default=0.9, help="of the memory that it sees")
    parser.add_argument("--eager", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
