"""vLLM as a batch job has it: 64 prompts of 256 tokens, 64 new tokens each, again and again.

usage: vllm_batch.py CONTROL_FILE SAMPLES_FILE --model FOLDER [--use FRACTION] [--eager]
"""
# mypy: ignore-errors

from __future__ import annotations

import argparse
from pathlib import Path

from bench.gpu.engines.programs import steer
from bench.gpu.engines.programs.vllm_options import engine_options, sampling

VOCABULARY = 128_256
REQUESTS, PROMPT, TOKENS = 64, 256, 64


def main() -> None:
    from vllm import LLM

    parser = argparse.ArgumentParser()
    parser.add_argument("control", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--use", type=float, default=0.9, help="of the memory that it sees")
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    engine = LLM(**engine_options(options))
    few = steer.prompts(PROMPT, VOCABULARY)
    asked = [{"prompt_token_ids": few[at % len(few)]} for at in range(REQUESTS)]

    def turn():
        answers = engine.generate(asked, sampling(TOKENS, delta=False), use_tqdm=False)
        return float(REQUESTS * TOKENS), [number for each in answers for number in each.outputs[0].token_ids]

    turn()
    steer.ready()
    steer.loop(steer.Control(options.control), steer.Samples(options.samples), turn)


if __name__ == "__main__":
    main()
