"""llama.cpp by its shared library: one sequence, prompt and then token by token, the largest logit found on the host.

usage: llama_serve.py CONTROL_FILE SAMPLES_FILE --lib FOLDER --model FILE [--context TOKENS] [--cpu THREADS]

Without --cpu it ends where the library finds no GPU: it would compute on the CPU, and say nothing.

Its parameters are structures whose end grows from release to release; only what stands at their beginning is set, and
they are passed with room to spare, which C's calling convention on x86-64 and ARM allows.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu.engines.programs import steer

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_TOLD = (3, 4)  # warnings and errors


class Parameters(ctypes.Structure):
    """Of a model or a context: as large as any release's."""

    _fields_ = (("head", ctypes.c_uint32 * 4), ("rest", ctypes.c_ubyte * 1008))


class Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    )


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_supports_gpu_offload": (ctypes.c_bool, ()),
    "llama_log_set": (None, (_LOG, _POINTER)),
    "llama_model_default_params": (Parameters, ()),
    "llama_context_default_params": (Parameters, ()),
    "llama_model_load_from_file": (_POINTER, (ctypes.c_char_p, Parameters)),
    "llama_init_from_model": (_POINTER, (_POINTER, Parameters)),
    "llama_set_n_threads": (None, (_POINTER, _INT, _INT)),
    "llama_get_memory": (_POINTER, (_POINTER,)),
    "llama_memory_clear": (None, (_POINTER, ctypes.c_bool)),
    "llama_model_get_vocab": (_POINTER, (_POINTER,)),
    "llama_vocab_n_tokens": (_INT, (_POINTER,)),
    "llama_batch_get_one": (Batch, (_POINTER, _INT)),
    "llama_decode": (_INT, (_POINTER, Batch)),
    "llama_sampler_init_greedy": (_POINTER, ()),
    "llama_sampler_sample": (_INT, (_POINTER, _POINTER, _INT)),
}


def load_cuda() -> None:
    """cudart and cuBLAS as PyTorch brings them, where it is installed: llama.cpp then takes those that are loaded."""
    torch = importlib.util.find_spec("torch")
    folder = Path(torch.origin).parents[1] / "nvidia" if torch and torch.origin else Path("/nonexistent")
    for name in ("libcudart", "libcublasLt", "libcublas"):  # the last needs the one before it
        for path in sorted(folder.glob(f"*/lib/{name}.so.*"))[:1]:
            ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)


def library(folder: Path) -> ctypes.CDLL:
    """libllama.so with the types of what is called of it; it finds its own parts beside it."""
    load_cuda()
    found = ctypes.CDLL(str(folder / "libllama.so"), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    for name, (answer, given) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = answer, given
    return found


def load_backends(found: ctypes.CDLL, folder: Path) -> None:
    """CUDA and CPU of a build that has them in files of their own (GGML_BACKEND_DL), as a program of llama.cpp does."""
    try:
        load, count = found.ggml_backend_load_all_from_path, found.ggml_backend_reg_count
    except AttributeError:  # an older release
        return
    load.restype, load.argtypes = None, (ctypes.c_char_p,)
    count.restype, count.argtypes = ctypes.c_size_t, ()
    if not count():
        load(os.fsencode(folder))


class Engine:
    """One model, one context."""

    def __init__(self, folder: Path, model: Path, context: int, cpu: int) -> None:
        """`cpu`: compute on so many threads where there is no GPU; 0: refuse to."""
        self._lib = library(folder)
        self._log = _LOG(self._say)  # kept: the library calls it as long as it lives
        self._lib.llama_log_set(self._log, None)
        load_backends(self._lib, folder)
        self._lib.llama_backend_init()
        if not cpu and not self._lib.llama_supports_gpu_offload():
            raise SystemExit("llama.cpp finds no GPU")
        self._model = self._lib.llama_model_load_from_file(os.fsencode(model), self._lib.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp does not load {model}")
        wanted = self._lib.llama_context_default_params()
        wanted.head[0] = wanted.head[1] = context  # n_ctx, n_batch
        wanted.head[3] = 1  # n_seq_max
        self._context = self._lib.llama_init_from_model(self._model, wanted)
        if not self._context:
            raise SystemExit("llama.cpp makes no context")
        if cpu:
            self._lib.llama_set_n_threads(self._context, cpu, cpu)
        self._memory = self._lib.llama_get_memory(self._context)
        self._sampler = self._lib.llama_sampler_init_greedy()
        self.vocabulary = int(self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model)))

    @staticmethod
    def _say(level: int, text: bytes, _: Any) -> None:
        if level in _TOLD:
            os.write(2, text)

    def _decode(self, tokens: list[int]) -> int:
        given = (ctypes.c_int32 * len(tokens))(*tokens)
        if code := self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(given, len(tokens))):
            raise SystemExit(f"llama_decode answers {code}")
        return int(self._lib.llama_sampler_sample(self._sampler, self._context, -1))

    def answer(self, prompt: list[int], tokens: int, put: Callable[[int], None]) -> None:
        """The tokens after a prompt."""
        self._lib.llama_memory_clear(self._memory, True)
        given = prompt
        for _ in range(tokens):
            given = [self._decode(given)]
            put(given[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("control", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--cpu", type=int, default=0, metavar="THREADS", help="go on where there is no GPU")
    options = parser.parse_args()
    engine = Engine(options.lib, options.model, options.context, options.cpu)
    for prompt in steer.prompts(512, engine.vocabulary)[:3]:
        engine.answer(prompt[: options.context // 2], 16, lambda _: None)
    steer.ready()
    steer.serve(steer.Control(options.control), steer.Samples(options.samples), engine.vocabulary, engine.answer)


if __name__ == "__main__":
    main()
