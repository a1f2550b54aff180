"""Builds what is written in C: the shim (libaliquot.so), and the stand-in GPU of simgpu/ when its sources are there.

    python shim/build.py                    into src/aliquot/lib, for this machine
    python shim/build.py --arch aarch64     for another one, into src/aliquot/lib-aarch64
    python shim/build.py --sanitize         for the tests (make test-sanitized): gcc with ASan and UBSan, into --out

The compiler is `zig cc` from the ziglang wheel, because it can build against glibc 2.17 on any machine and tenants
bring old images; without it $CC, cc or gcc, and then the library needs a glibc as new as this machine's. CC=gcc forces.
An output is built again only when a source, a header, the flags or the compiler changed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIB = ROOT / "src" / "aliquot" / "lib"
ARCHES = ("x86_64", "aarch64")

COMMON = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fno-strict-aliasing"]
COMMON += ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=0", "-fno-stack-protector"]  # __*_chk functions are not in musl
SHARED = ["-fPIC", "-shared", "-Wl,-Bsymbolic", "-Wl,-z,now", "-Wl,-z,relro"]
# initial-exec: a preloaded library has its thread variables from the start, and reads them without a call
SHIM = [*SHARED, "-ftls-model=initial-exec", "-Wl,-z,nodelete", "-Wl,-soname,libaliquot.so", "-ldl", "-lpthread"]


class BuildError(Exception):
    """Says what is missing and what to do about it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One file to make. Sources are relative to the repository; `flags` come after the common ones."""

    output: str
    sources: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles and links C, with what it always needs."""

    command: tuple[str, ...]

    def id(self) -> str:
        """Part of the fingerprint of an output: another compiler builds again."""
        return shlex.join(self.command)


def targets(root: Path = ROOT) -> list[Target]:
    """The shim first, and what simgpu/targets.py lists as TARGETS: (output, [sources], [flags])."""
    sources = tuple(sorted(f"shim/{path.name}" for path in (root / "shim").glob("*.c")))
    found = [Target("libaliquot.so", sources, tuple(SHIM))]
    listing = root / "simgpu" / "targets.py"
    if listing.exists():
        spec = importlib.util.spec_from_file_location("simgpu_targets", listing)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for output, files, flags in module.TARGETS:
            found.append(Target(output, tuple(files), tuple(flags)))
    return found


def choose_compiler(arch: str, *, sanitize: bool) -> Compiler:
    """zig, unless CC names another or the sanitizers of gcc are wanted."""
    if sanitize:
        gcc = shutil.which(os.environ.get("CC", "gcc"))
        if gcc is None:
            raise BuildError("--sanitize needs gcc")
        checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
        return Compiler((gcc, *checks))
    forced = os.environ.get("CC")
    if forced:
        return Compiler(tuple(shlex.split(forced)))
    if importlib.util.find_spec("ziglang") is not None:
        # Debug information tells where sources and zig lay: without it the same sources give the same bytes anywhere.
        target = f"{arch}-linux-gnu.2.17"
        return Compiler((sys.executable, "-m", "ziglang", "cc", "-target", target, "-Wl,--strip-debug"))
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path and arch == platform.machine():
            return Compiler((path,))
    raise BuildError(f"no C compiler for {arch}: `pip install ziglang`, or install gcc, or set CC")


def command_of(target: Target, compiler: Compiler, output: Path) -> list[str]:
    """Libraries (-l...) go last: a linker takes from them what was asked for before."""
    flags = [flag for flag in target.flags if not flag.startswith("-l")]
    libraries = [flag for flag in target.flags if flag.startswith("-l")]
    sources = [str(ROOT / source) for source in target.sources]
    return [*compiler.command, *COMMON, *flags, *sources, "-o", str(output), *libraries]


def fingerprint(target: Target, command: Sequence[str]) -> str:
    """Of all that goes in: sources, every header and table of the repository's C folders, and the command."""
    digest = hashlib.sha256("\0".join(command).encode())
    texts = {ROOT / source for source in target.sources}
    for folder in {source.parts[0] for source in map(Path, target.sources)} | {"shim"}:
        for pattern in ("**/*.h", "**/*.def"):
            texts.update((ROOT / folder).glob(pattern))
    for path in sorted(texts):
        try:
            digest.update(str(path).encode() + b"\0" + path.read_bytes())
        except OSError as error:
            raise BuildError(f"{target.output}: {error}") from error
    return digest.hexdigest()


def build(target: Target, compiler: Compiler, out: Path) -> bool:
    """Makes one output; False when it was up to date. The old file stays whole until the new one is there: it may be
    mapped by running tenants."""
    output = out / target.output
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_name(f".{output.name}.{os.getpid()}")
    mark = fingerprint(target, command_of(target, compiler, output))
    stamp = output.with_name(f".{output.name}.built")
    if output.exists() and stamp.exists() and stamp.read_text() == mark:
        return False
    command = command_of(target, compiler, fresh)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode != 0:
            raise BuildError(f"{target.output}: {shlex.join(command)}\n{done.stderr.strip()}")
        fresh.replace(output)
        stamp.write_text(mark)
    finally:
        fresh.unlink(missing_ok=True)
    return True


def build_all(
    *, out: Path | None = None, arch: str | None = None, sanitize: bool = False, quiet: bool = False
) -> list[Path]:
    """Builds everything; returns the outputs. Raises BuildError, after trying all of them."""
    arch = arch or platform.machine()
    if arch not in ARCHES:
        raise BuildError(f"machine {arch}: the shim knows {' and '.join(ARCHES)}")
    if out is None:
        out = LIB if arch == platform.machine() else LIB.with_name(f"lib-{arch}")
    compiler = choose_compiler(arch, sanitize=sanitize)
    made, failed = [], []
    for target in targets():
        try:
            new = build(target, compiler, out)
        except BuildError as error:
            failed.append(str(error))
            continue
        if not quiet:
            print(f"{'built' if new else 'fresh':5}  {out / target.output}", flush=True)
        made.append(out / target.output)
    if failed:
        raise BuildError("\n".join(failed))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the shim and the stand-in GPU.")
    parser.add_argument("--out", type=Path, help="where to put them (default: src/aliquot/lib)")
    parser.add_argument("--arch", choices=ARCHES, help="machine to build for (default: this one)")
    parser.add_argument(
        "--sanitize", action="store_true", help="with checks of addresses and of undefined behaviour, for tests"
    )
    args = parser.parse_args()
    try:
        build_all(out=args.out, arch=args.arch, sanitize=args.sanitize)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
