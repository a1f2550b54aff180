"""The shim under test: built when it is not, loaded into small programs over a driver of straw (fake/)."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aliquot.adapters.gpu.page import SLOTS, Page, Use
from aliquot.model.tenant import Allotment
from kit.running.shimbuild import shim_build

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
UUIDS = tuple(
    "GPU-" + "-".join(f"{byte:02x}" * n for n in (4, 2, 2, 2, 6)) for byte in (0x11, 0x22)
)  # the cards of the straw driver
GIB = 1 << 30
MIB = 1 << 20


def preloaded(libraries: str) -> str:
    """The value of LD_PRELOAD: the library of a sanitizer comes before what it checks."""
    return f"{os.environ.get('ALIQUOT_TEST_PRELOAD', '')} {libraries}".strip()


def with_helpers(code: str) -> str:
    """A program that begins in the device's own context."""
    return "primary()\n" + textwrap.dedent(code)


class Built:
    """The files that tests need, made once: the shim, the driver and resource manager of straw, some programs."""

    def __init__(self) -> None:
        build = shim_build()
        self.folder = ROOT / "out" / "tests-shim"
        compiler = build.choose_compiler(platform.machine(), sanitize=False)
        fake = "tests/shim/fake"
        cuda = (
            "-Wl,-soname,libcuda.so.1",
            f"-Wl,--version-script={ROOT / fake / 'cuda.map'}",
            f"-I{ROOT / 'shim'}",
            "-ldl",
        )
        nvml = ("-Wl,-soname,libnvidia-ml.so.1", *cuda[1:])
        shared = tuple(build.SHARED)
        include = f"-I{ROOT / 'shim'}"
        driver = str(self.folder / "lib" / "libcuda.so.1")
        ml = str(self.folder / "lib" / "libnvidia-ml.so.1")
        for target in (
            build.Target("lib/libcuda.so.1", (f"{fake}/cuda.c",), (*shared, *cuda)),
            build.Target("lib/libnvidia-ml.so.1", (f"{fake}/cuda.c",), (*shared, *nvml)),
            build.Target("librm.so", (f"{fake}/rm.c",), (*shared, include, "-ldl")),
            build.Target("libnext.so", (f"{fake}/next.c",), (*shared, "-ldl")),
            build.Target("plain", (f"{fake}/main.c",), ("-ldl",)),
            build.Target("liblate.so", (f"{fake}/late.c",), (*shared, include, "-ldl")),
            build.Target("probe", (f"{fake}/probe.c",), (include, driver, ml, "-ldl", "-lpthread")),
        ):
            build.build(target, compiler, self.folder)
        # another build of the shim (--sanitize), when somebody wants these tests to run on it
        self.shim = Path(os.environ.get("ALIQUOT_TEST_SHIM", build.LIB / "libaliquot.so"))
        self.preload = preloaded(str(self.shim))
        if "ALIQUOT_TEST_SHIM" not in os.environ:
            build.build(build.targets()[0], compiler, build.LIB)


class Program:
    """A running program of the tenant: speaks lines of JSON, listens to lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def answer(self) -> dict[str, Any]:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return dict(json.loads(line))

    def proceed(self) -> None:
        """Go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.end()


class Tenant:
    """A tenant's directory with its page, and programs that run under the shim."""

    def __init__(self, folder: Path, built: Built) -> None:
        self.folder = folder
        self.built = built
        self.rm_log = folder / "rm.log"
        self.page = self.grant(4 * GIB)
        self.programs: list[Program] = []

    def grant(self, *limits: int | None) -> Page:
        """Make (or remake) the page with these memory limits, card by card."""
        if hasattr(self, "page"):
            self.page.close()
        self.page = Page(self.folder / "page", [Allotment(u, n) for u, n in zip(UUIDS, limits, strict=False)])
        self.beat()
        return self.page

    def beat(self, age: float = 0.0) -> None:
        """The daemon's heartbeat, `age` seconds old."""
        for card in range(len(self.page.uuids)):
            self.page.beat(card, time.monotonic_ns() - int(age * 1e9))

    @contextmanager
    def beating(self) -> Iterator[None]:
        """The daemon lives. Its heartbeat is half a second ahead, which is as good: this process may have to wait."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(0.05):
                self.beat(age=-0.5)

        self.beat(age=-0.5)
        heart = threading.Thread(target=beat)
        heart.start()
        try:
            yield
        finally:
            ended.set()
            heart.join()

    def environment(self, *, preload: str | None = None, tenant: str | None = None) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": preloaded(preload or f"{self.built.shim} {self.built.folder / 'librm.so'}"),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python frees nothing at its end
            "LD_LIBRARY_PATH": str(self.built.folder / "lib"),
            "ALIQUOT_TENANT": str(self.folder) if tenant is None else tenant,
            "FAKE_RM_LOG": str(self.rm_log),
        }

    def start(self, code: str, **environment: str) -> Program:
        """A Python program in the tenant; `from straw import *` is done."""
        head = f"import sys; sys.path.insert(0, {str(HERE)!r}); from straw import *\n"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", head + textwrap.dedent(code)],
            env=self.environment() | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.programs.append(Program(process))
        return self.programs[-1]

    def run(self, code: str, **environment: str) -> dict[str, Any]:
        """A program to its end: the last line it said."""
        program = self.start(code, **environment)
        assert program.process.stdin is not None
        assert program.process.stdout is not None
        program.process.stdin.close()
        lines = program.process.stdout.read().splitlines()
        assert program.end() == 0
        return dict(json.loads(lines[-1]))

    def use(self, slot: int = 0, card: int = 0) -> Use:
        return self.page.use(slot, card)

    def slots(self) -> list[int]:
        return [slot for slot in range(SLOTS) if self.page.pid(slot)]

    def listen(self) -> socket.socket:
        """Listen as the daemon does."""
        path = self.folder / "sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(5)
        return listener

    def close(self) -> None:
        for program in self.programs:
            if program.process.poll() is None:
                program.kill()
            for pipe in (program.process.stdin, program.process.stdout):
                if pipe is not None:
                    pipe.close()
        self.page.close()


def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    """What another process will do soon."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
