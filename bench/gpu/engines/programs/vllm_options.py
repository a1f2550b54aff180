"""How the programs that drive vLLM start it: random weights, no tokenizer, CUDA graphs for decoding."""
# mypy: ignore-errors

from __future__ import annotations

import argparse
from typing import Any


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """As for `LLM(...)` and `AsyncEngineArgs(...)`. Nothing is compiled: a start takes 23 s, not minutes."""
    chosen: dict[str, Any] = {
        "model": str(options.model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,  # the same prompts come again
        "max_model_len": 4096,
        "gpu_memory_utilization": options.use,
    }
    if options.eager:
        return chosen | {"enforce_eager": True}
    return chosen | {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}


def sampling(tokens: int, *, delta: bool) -> Any:
    """Greedy, of that many tokens: the same prompt has the same answer."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if delta else RequestOutputKind.FINAL_ONLY
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=kind)
