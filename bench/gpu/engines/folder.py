"""The folder with engines that are not ours: what is there, and how a program of ours is started with it.

FOLDER/vllm-site     a folder of Python packages with vLLM and what it needs beside PyTorch
FOLDER/llama/lib     libllama.so and the libraries that it loads
FOLDER/more-site     the same as vllm-site with sentence-transformers and JAX, where they are not installed
FOLDER/models        made by us: random weights
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.children import ChildError, answer
from bench.gpu.engines.catalog import Engine
from bench.gpu.grounds import Ground

PROGRAMS = Path(__file__).parent / "programs"
STANDIN = PROGRAMS / "standin.py"
_USE = 0.9  # of the memory that vLLM sees


@dataclass(frozen=True, slots=True)
class Folder:
    """`simulate`: every engine is played by one that sleeps."""

    path: Path
    simulate: bool

    def missing(self, engine: Engine) -> str | None:
        """Why it cannot run here; None: it can."""
        if self.simulate:
            return None
        if engine.name == "llama":
            return None if self.llama.exists() else f"not there: {self.llama}"
        if engine.site and (self.path / engine.site / engine.package).is_dir():
            return None if importlib.util.find_spec("torch") or engine.package == "jax" else "PyTorch is not installed"
        if engine.package and not importlib.util.find_spec(engine.package):
            return f"not there: {self.path / engine.site}" if engine.site else f"{engine.package} is not installed"
        return None

    @property
    def llama(self) -> Path:
        return self.path / "llama" / "lib" / "libllama.so"

    def command(self, engine: Engine, ground: Ground, control: Path, samples: Path, more: tuple[str, ...]) -> list[str]:
        """The program, its model made where there is none yet."""
        if self.simulate:
            return [sys.executable, str(STANDIN), str(control), str(samples), *([] if engine.server else ["--loop"])]
        program = [sys.executable, str((PROGRAMS / engine.program).resolve()), str(control), str(samples)]
        return ["env", *self._variables(engine), *program, *self._options(engine, ground, samples), *more]

    def _variables(self, engine: Engine) -> list[str]:
        paths = [str(self.path / engine.site)] if engine.site else []
        found = os.pathsep.join([*_own_paths(), *paths, *filter(None, [os.environ.get("PYTHONPATH")])])
        return [f"PYTHONPATH={found}", *(f"{name}={value}" for name, value in engine.variables)]

    def _options(self, engine: Engine, ground: Ground, samples: Path) -> list[str]:
        if engine.package == "vllm":
            use = _USE * engine.gib / _card_gib() if ground.name != "aliquot" else _USE
            return ["--model", str(self._model("vllm-8b", "vllm")), "--use", f"{use:.3f}"]
        if engine.name == "llama":
            return ["--lib", str(self.llama.parent), "--model", str(self._model("llama.gguf", "gguf"))]
        return ["--folder", str(samples.with_suffix(".model"))] if engine.name == "embed" else []

    def _model(self, name: str, kind: str) -> Path:
        """Made once, by a process of its own: the package gguf is among vLLM's, or on PYTHONPATH."""
        path = self.path / "models" / name
        if not path.exists():
            found = [*_own_paths(), str(self.path / "vllm-site"), os.environ.get("PYTHONPATH")]
            paths = os.pathsep.join(filter(None, found))
            words = [sys.executable, str(PROGRAMS / "make_model.py"), kind, str(path)]
            answer(words, {**os.environ, "PYTHONPATH": paths}, 120)
        return path


def _own_paths() -> list[str]:
    """So that programs find the bench and `aliquot`."""
    root = Path(__file__).resolve().parents[3]
    return [str(root), str(root / "src")]


def _card_gib() -> float:
    """Of the first card, by the driver."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        return float(answer(query, os.environ, 30).split()[0]) / 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ChildError(f"nvidia-smi does not tell the card's memory: {error}") from error
