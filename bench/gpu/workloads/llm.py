"""Online: a GPT (16 layers, 2048 wide, half precision) that answers requests: 512-token prompts, then token by token.

usage: llm.py CONTROL_FILE SAMPLES_FILE. The control file says `run RATE TOKENS`, `idle` or `stop`. A sample is a
request's time to its first token, in seconds; those of the tokens after it go to SAMPLES_FILE.tokens. Prefill and
decoding are a CUDA graph each. Weights are random: the time is the same.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn import functional

LAYERS, WIDTH, HEADS, WORDS = 16, 2048, 16, 32_000
PROMPT, MOST_TOKENS = 512, 24
CACHE = PROMPT + MOST_TOKENS + 8


class Gpt:
    """Weights, cache, and two graphs. What is computed makes no sense; how long it takes does."""

    def __init__(self) -> None:
        def weight(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", dtype=torch.half) * 0.02

        self.embedding = weight(WORDS, WIDTH)
        self.layers = [
            (weight(3 * WIDTH, WIDTH), weight(WIDTH, WIDTH), weight(4 * WIDTH, WIDTH), weight(WIDTH, 4 * WIDTH))
            for _ in range(LAYERS)
        ]
        shape = (LAYERS, 2, 1, HEADS, CACHE, WIDTH // HEADS)
        self.cache = torch.zeros(shape, device="cuda", dtype=torch.half)
        self.prompt = torch.randint(WORDS, (1, PROMPT), device="cuda")
        self.token = torch.zeros((1, 1), device="cuda", dtype=torch.long)
        self.at = torch.full((1,), PROMPT, device="cuda", dtype=torch.long)
        self.places = torch.arange(CACHE, device="cuda")
        self.prefill = self._captured(lambda: self._forward(self.prompt, self.places[:PROMPT], causal=True))
        self.decode = self._captured(self._next)

    def _next(self) -> None:
        self._forward(self.token, self.at, causal=False)
        self.at.add_(1)

    def _forward(self, tokens: Any, places: Any, *, causal: bool) -> None:
        hidden = functional.embedding(tokens, self.embedding)
        length = tokens.shape[1]
        for at, (qkv, out, up, down) in enumerate(self.layers):
            parts = functional.linear(functional.layer_norm(hidden, (WIDTH,)), qkv)
            query, key, value = parts.view(1, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            keys, values = self.cache[at]
            keys.index_copy_(2, places, key)
            values.index_copy_(2, places, value)
            if causal:
                mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            else:
                mask = (self.places <= self.at).view(1, 1, 1, CACHE)
                mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            hidden = hidden + functional.linear(mixed.transpose(1, 2).reshape(1, length, WIDTH), out)
            inner = functional.gelu(functional.linear(functional.layer_norm(hidden, (WIDTH,)), up))
            hidden = hidden + functional.linear(inner, down)
        words = functional.linear(functional.layer_norm(hidden[:, -1:], (WIDTH,)), self.embedding)
        self.token.copy_(words.argmax(-1))

    def _captured(self, work: Any) -> Any:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.at.fill_(PROMPT)
                work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph

    def answer(self, tokens: int) -> list[float]:
        """Seconds of the first token, and of each after it."""
        took = []
        began = time.perf_counter()
        self.at.fill_(PROMPT)
        for at in range(tokens):
            (self.decode if at else self.prefill).replay()
            self.token.item()  # as a server does that sends each token
            now = time.perf_counter()
            took.append(now - began)
            began = now
        return took


def serve(model: Gpt, control: Path, firsts: TextIO, others: TextIO) -> None:
    """Requests at a steady pace, one after the other."""
    looked, words, due = 0.0, ["idle"], 0.0
    while words != ["stop"]:
        now = time.monotonic()
        if now - looked > 0.02:
            looked, words = now, _words(control)
        if words[0] != "run":
            time.sleep(0.005)
            due = time.monotonic()
            continue
        if due > now:
            time.sleep(min(0.02, due - now))
            continue
        began = time.monotonic()
        first, *rest = model.answer(int(words[2]))
        firsts.write(f"{began:.6f} {first:.6f}\n")
        others.writelines(f"{began:.6f} {token:.6f}\n" for token in rest)
        due = max(due + 1 / float(words[1]), time.monotonic())


def _words(control: Path) -> list[str]:
    try:
        return control.read_text().split() or ["idle"]
    except OSError:
        return ["idle"]


def main() -> None:
    with torch.inference_mode():
        model = Gpt()
        for _ in range(5):
            model.answer(MOST_TOKENS)
        samples = Path(sys.argv[2])
        others = samples.with_name(samples.name + ".tokens")
        with samples.open("a", buffering=1) as firsts, others.open("a", buffering=1) as tokens:
            print("READY", file=sys.stderr, flush=True)
            serve(model, Path(sys.argv[1]), firsts, tokens)


if __name__ == "__main__":
    main()
