"""Which engines there are, what each needs to run, and which stand beside each other."""

from __future__ import annotations

from dataclasses import dataclass

VLLM = {
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_DEEP_GEMM_WARMUP": "skip",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "HF_HUB_OFFLINE": "1",
}
JAX = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # three of them take turns on the stock driver, each for a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A program that drives an engine. `order`: what a server is told beside others; "" for a loop."""

    name: str
    program: str
    gib: int
    package: str = ""  # what it imports of its engine
    site: str = ""  # the folder below FOLDER that may hold it, and more
    order: str = ""
    busy: str = ""  # what a server is told that is to have work all the time
    unit: str = "tok/s"
    repeatable: bool = False  # greedy tokens are the same on every run
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def server(self) -> bool:
        return bool(self.order)


_LIST = (
    Engine(
        name="vllm",
        program="vllm_serve.py",
        gib=40,
        package="vllm",
        site="vllm-site",
        order="rate=2 tokens=32 prompt=512",
        busy="clients=4 tokens=64 prompt=256",
        repeatable=True,
        variables=tuple(VLLM.items()),
    ),
    Engine(
        name="vllm-batch",
        program="vllm_batch.py",
        gib=40,
        package="vllm",
        site="vllm-site",
        repeatable=True,
        variables=tuple(VLLM.items()),
    ),
    Engine(
        name="llama",
        program="llama_serve.py",
        gib=6,
        order="rate=6 tokens=24 prompt=512",
        busy="clients=1 tokens=128 prompt=64",
        repeatable=True,
    ),
    Engine(
        name="hf",
        program="hf_generate.py",
        gib=10,
        package="transformers",
        order="rate=1 tokens=32 prompt=128",
        busy="clients=1 tokens=64 prompt=128",
        variables=(("HF_HUB_OFFLINE", "1"),),
    ),
    Engine(name="hf-training", program="hf_train.py", gib=24, package="transformers", unit="steps/s"),
    Engine(name="training", program="../../workloads/transformer.py", gib=32, package="torch", unit="steps/s"),
    Engine(
        name="embed",
        program="embed.py",
        gib=8,
        package="sentence_transformers",
        site="more-site",
        unit="sentences/s",
        variables=(("HF_HUB_OFFLINE", "1"), ("TOKENIZERS_PARALLELISM", "false")),
    ),
    Engine(
        name="jax",
        program="jax_loop.py",
        gib=12,
        package="jax",
        site="more-site",
        unit="steps/s",
        variables=tuple(JAX.items()),
    ),
)
ENGINES = {engine.name: engine for engine in _LIST}

# online, and what is offline beside it
BESIDE = (
    ("vllm", "vllm-batch"),
    ("vllm", "training"),
    ("llama", "training"),
    ("llama", "llama"),
    ("llama", "vllm-batch"),
    ("hf", "hf-training"),
    ("hf", "hf"),
    ("llama", "embed"),
    ("llama", "jax"),
)
# of the ordinary class, all busy
ORDINARY: tuple[tuple[str, ...], ...] = (
    ("llama", "llama"),
    ("vllm", "vllm"),
    ("hf", "hf"),
    ("llama", "vllm"),
    ("llama", "training"),
    ("embed", "embed"),
    ("llama", "llama", "llama"),
    ("llama", "llama", "llama", "llama"),
)
# in a group, and how many times what they do on the stock driver
GROUPS = (
    (("vllm", "vllm"), 1.35),
    (("embed", "embed", "embed"), 2.0),
)
# online, offline, and tokens of a prompt
VALVE = (
    (("vllm", "vllm-batch"), 512),
    (("vllm", "vllm-batch"), 2048),
    (("vllm", "training"), 512),
    (("vllm", "training"), 2048),
)
