"""The programs the tests run on, built once from Go modules and kept; the go.mod of each folder says the versions.

`python tests/testbed/build.py` builds what is missing: some twelve minutes on two cores, 3 GB of Go's build cache, and
600 MB of programs in $XDG_CACHE_HOME (or ~/.cache)/aliquot/testbed/VERSION. Go fetches the modules through GOPROXY, as
always, and a newer Go too where go.mod asks for one. What lies in $KUBEBUILDER_ASSETS, the convention of envtest, is
taken from there. $KUBERNETES names another release that has a folder here: with `KUBERNETES=1.28` the cluster's own
programs are those of 1.28, and etcd and kubectl those of the newest.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


class CannotBuildError(Exception):
    """Why, and what to do."""


@dataclass(frozen=True, slots=True)
class Module:
    """A go.mod, the programs built with it, and the modules whose versions say which builds are the same."""

    title: str
    folder: Path
    packages: Mapping[str, str]  # each also named in the folder's tools.go, or `go mod tidy` drops what it needs
    versioned: tuple[str, ...]

    def said(self, pattern: str) -> str:
        found = re.search(pattern, (self.folder / "go.mod").read_text(), re.MULTILINE)
        assert found, f"{self.folder / 'go.mod'} has no line like {pattern}"
        return found[1]

    def version(self, of: str) -> str:
        return self.said(rf"^require {re.escape(of)} (v\S+)$")


_OF_CLUSTER = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_PACKAGES = {name: f"k8s.io/kubernetes/cmd/{name}" for name in _OF_CLUSTER}
NEWEST = Module(
    "Kubernetes",
    HERE / "go",
    {"etcd": "go.etcd.io/etcd/server/v3", **_PACKAGES, "kubectl": "k8s.io/kubernetes/cmd/kubectl"},
    ("k8s.io/kubernetes",),
)
OLDER = {
    release: Module(f"Kubernetes {release}", HERE / f"go-{release}", _PACKAGES, ("k8s.io/kubernetes",))
    for release in ("1.28", "1.32")
}


def chosen(release: str | None) -> Module:
    """The Kubernetes that tests run on: the newest, unless $KUBERNETES names another."""
    newest = NEWEST.version("k8s.io/kubernetes").removeprefix("v").rpartition(".")[0]
    known = {**OLDER, newest: NEWEST}
    if not release:
        return NEWEST
    if release not in known:
        sys.exit(f'KUBERNETES: "{release}" is not allowed: one of {", ".join(known)}')
    return known[release]


KUBERNETES = chosen(os.environ.get("KUBERNETES"))
CONTAINERS = Module(
    "containerd and runc",
    HERE / "containers",
    {
        "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
        "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
        "runc": "github.com/opencontainers/runc",
    },
    ("github.com/containerd/containerd/v2", "github.com/opencontainers/runc"),
)
CHARTS = Module("Helm", HERE / "helm", {"helm": "helm.sh/helm/v4/cmd/helm"}, ("helm.sh/helm/v4",))
PUSHES = Module(
    "crane",
    HERE / "crane",
    {"crane": "github.com/google/go-containerregistry/cmd/crane"},  # pushes, and is a registry to push to
    ("github.com/google/go-containerregistry",),
)
QUEUES = Module("Kueue", HERE / "kueue", {"kueue": "sigs.k8s.io/kueue/cmd/kueue"}, ("sigs.k8s.io/kueue",))
_KUBERNETES = (NEWEST,) if KUBERNETES is NEWEST else (KUBERNETES, NEWEST)  # a program is of the first that has it
MODULES = (*_KUBERNETES, CONTAINERS, CHARTS, PUSHES, QUEUES)
VERSION = KUBERNETES.version("k8s.io/kubernetes")
RELEASE = (int(VERSION.split(".")[0].lstrip("v")), int(VERSION.split(".")[1]))
_TAGS = ("-tags=providerless",)  # older releases contain the SDKs of several clouds otherwise
_WITH_C = ("runc",)  # enters namespaces before Go's threads begin, in C

NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc")
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
SHIPPING = ("helm", "crane")

_UNVERSIONED = re.compile(r"/v\d+$")  # a module's path ends with its major version
_OLDEST_GO = (1, 21)  # the first that fetches a newer Go when go.mod asks for one
_SAY_EVERY = 60.0  # seconds between two lines where no terminal shows the bar


def cache_home() -> Path:
    """Everything the testbed keeps from run to run."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "aliquot" / "testbed"


def cache_folder(module: Module = NEWEST) -> Path:
    if module in _KUBERNETES:
        return cache_home() / module.version("k8s.io/kubernetes")
    parts = [f"{Path(_UNVERSIONED.sub('', of)).name}-{module.version(of)}" for of in module.versioned]
    return cache_home() / "-".join(parts)


def binaries(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """Where each of the programs is; those that are nowhere are built first."""
    known = [name for module in MODULES for name in module.packages]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CannotBuildError(f"no such program: {', '.join(unknown)}; known are {', '.join(known)}")
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and not Path(assets).is_dir():
        raise CannotBuildError(
            f"KUBEBUILDER_ASSETS is {assets!r}, which is no folder: unset it, or name one with {names}"
        )
    given = {name: Path(assets) / name for name in names if (Path(assets) / name).exists()} if assets else {}
    wanted = [name for name in names if name not in given]
    found: dict[str, Path] = {}
    for module in MODULES:
        found |= _built([name for name in wanted if name in module.packages and name not in found], module)
    return {name: (given | found)[name] for name in names}


def source(module: Module) -> Path:
    """The folder of the module's source, for the manifests in it; Go fetches it if it is not there any more."""
    words = [_find_go(module), "mod", "download", "-json", module.versioned[0]]
    done = subprocess.run(words, cwd=module.folder, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout or "{}")
    if "Dir" not in found:
        raise CannotBuildError(f"the source of {module.title}: {found.get('Error') or done.stderr}")
    return Path(found["Dir"])


def _built(wanted: Sequence[str], module: Module) -> dict[str, Path]:
    cache = cache_folder(module)
    if not all((cache / name).exists() for name in wanted):
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache):  # a process that waited here finds it built
            _build([name for name in wanted if not (cache / name).exists()], module, cache)
    return {name: cache / name for name in wanted}


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Two test runs build once. The lock ends with its process, however that ends."""
    with (cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process is building into {cache}; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(names: Sequence[str], module: Module, cache: Path) -> None:
    if not names:
        return
    go = _find_go(module)
    _say(f"building {module.title} into {cache}, once: {', '.join(names)}")
    began = time.monotonic()
    steps = len(names) + 1
    packages = [module.packages[name] for name in names]
    # Not `go mod download`, which fetches the whole module graph, most of it for nothing.
    fetch = _Step("fetching the Go modules", 0, steps, began)
    _run([go, "list", *_TAGS, "-deps", *packages], fetch, module, _environment(names))
    with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as folder:
        for step, name in enumerate(names, start=1):
            unfinished = Path(folder) / name
            flags = [*_TAGS, "-trimpath", "-ldflags", f"-s -w {_version_flags(module)}", "-o", str(unfinished)]
            progress = _Step(f"{name} ({step} of {len(names)})", step, steps, began)
            _run([go, "build", *flags, module.packages[name]], progress, module, _environment([name]))
            unfinished.replace(cache / name)  # there is either a whole program or none
    _say(f"built in {_clock(time.monotonic() - began)}")


def _version_flags(module: Module) -> str:
    """What the programs say of themselves; without it they take themselves for unknown ones."""
    if module is CONTAINERS:
        of = module.versioned[0]
        return f"-X {of}/version.Version={module.version(of)}"
    if module is CHARTS:
        of = module.versioned[0]
        return f"-X {of}/internal/version.version={module.version(of)}"
    if module is PUSHES:
        return f"-X {module.packages['crane']}/cmd.Version={module.version(module.versioned[0])}"
    if module is QUEUES:
        of = module.versioned[0]
        return f"-X {of}/pkg/version.GitVersion={module.version(of)}"
    version = module.version("k8s.io/kubernetes")
    major, minor = version.lstrip("v").split(".")[:2]
    base = "k8s.io/component-base/version"
    return f"-X {base}.gitVersion={version} -X {base}.gitMajor={major} -X {base}.gitMinor={minor}"


def _environment(names: Sequence[str]) -> dict[str, str]:
    if not any(name in _WITH_C for name in names):
        return {**os.environ, "CGO_ENABLED": "0"}
    compiler = shutil.which("gcc") or f"{sys.executable} -m ziglang cc"
    return {"CC": compiler, **os.environ, "CGO_ENABLED": "1"}


def _find_go(module: Module) -> str:
    wanted = module.said(r"^go (\S+)$")
    advice = f"install Go {wanted} (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with the programs"
    go = shutil.which("go")
    if go is None:
        raise CannotBuildError(f"there is no `go` on the PATH to build {module.title} with: {advice}")
    # Not in the module's folder: there an old Go fails at the first line of go.mod it does not know.
    asked = subprocess.run([go, "version"], cwd="/", env={**os.environ, "GOTOOLCHAIN": "local"}, capture_output=True)
    words = asked.stdout.decode(errors="replace")
    found = re.search(r"go(\d+)\.(\d+)", words)
    if not found:
        raise CannotBuildError(f"`{go} version` did not tell a version but {words or asked.stderr!r}: {advice}")
    if (int(found[1]), int(found[2])) < _OLDEST_GO:
        oldest = ".".join(map(str, _OLDEST_GO))
        raise CannotBuildError(
            f"{go} is {found[0]}; {oldest} is the oldest that can fetch Go {wanted} itself: {advice}"
        )
    return go


@dataclass(frozen=True, slots=True)
class _Step:
    """The step that is under way."""

    what: str
    number: int
    of: int
    began: float  # all of it


def _run(command: Sequence[str], where: _Step, module: Module, environment: Mapping[str, str]) -> None:
    """Runs it, and shows where we are while it runs."""
    own = time.monotonic()
    what, step, steps, began = where.what, where.number, where.of, where.began
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=module.folder, env=environment, stdout=output, stderr=output)
        terminal = sys.stderr.isatty()
        if not terminal:
            _say(f"[{step}/{steps - 1}] {what} ...")
        said = own
        try:
            while process.poll() is None:
                now = time.monotonic()
                if terminal:
                    _draw(what, step, steps, now - own, now - began)
                elif now - said >= _SAY_EVERY:
                    said = now
                    _say(f"[{step}/{steps - 1}] {what}, {_clock(now - own)}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if terminal:
                sys.stderr.write("\r\x1b[K")
        if process.returncode:
            output.seek(0)
            said_last = output.read().decode(errors="replace").strip()[-3000:]
            raise CannotBuildError(
                f"{what}: `go {command[1]}` ended with exit code {process.returncode}:\n{said_last}\n"
                "If modules could not be fetched: check GOPROXY and the network, then run it again; "
                "what was fetched and built so far is kept."
            )
    _say(f"[{step}/{steps - 1}] {what}: {_clock(time.monotonic() - own)}")


def _draw(what: str, step: int, steps: int, own: float, whole: float) -> None:
    full = round(24 * step / steps)
    sys.stderr.write(f"\r\x1b[K[{'#' * full}{'.' * (24 - full)}] {what}  {_clock(own)}, {_clock(whole)} in all")
    sys.stderr.flush()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it takes its `go` with it
    try:
        found = binaries(sys.argv[1:] or (*CONTROL_PLANE, *NODE, *SHIPPING))
    except CannotBuildError as error:
        sys.exit(f"cannot build the testbed: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; what was built so far is kept")
    _say(f"the programs of the tests: {', '.join(sorted({str(path.parent) for path in found.values()}))}")


if __name__ == "__main__":
    main()
