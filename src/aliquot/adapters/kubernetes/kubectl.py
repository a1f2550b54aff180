"""The cluster as the user's own kubectl sees it: every login, proxy and context that works there works here.

Returns what `kubectl get --raw` prints. A request that fails raises `KubectlError`, which says what to do, so that a
caller may go on with the other requests.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote, urlencode

from aliquot.adapters.kubernetes.paging import EndlessError, Pages
from aliquot.adapters.kubernetes.programs import TooMuchError, output_of
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.decoding.shallowjson import decoded

_PAGE = 500  # objects; as kubectl itself asks
_MOST = 1 << 30  # bytes of one page: an API server keeps objects of up to 1.5 MiB
_PATIENCE = 120.0  # seconds for one page; kubectl has a --request-timeout of its own

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
QUOTAS = "/api/v1/resourcequotas"
SLICES = "/apis/resource.k8s.io"
SLICE_VERSIONS = ("v1", "v1beta2", "v1beta1")  # the newest first
CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"


class Trouble(StrEnum):
    """What went wrong, as far as it changes what to do."""

    NO_KUBECTL = "no-kubectl"
    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    EXPIRED = "expired"
    OTHER = "other"


class KubectlError(Exception):
    """One request that kubectl could not make, with what it text and what to do."""

    def __init__(self, trouble: Trouble, text: str, advice: str = "") -> None:
        super().__init__(f"{text}: {advice}" if advice else text)
        self.trouble = trouble
        self.text = text
        self.advice = advice


# What kubectl says, in the order in which it is looked for: the first that occurs decides.
_SAID = (
    ("(Forbidden)", Trouble.FORBIDDEN, "ask for a role that may do this; `kubectl auth can-i --list` shows yours"),
    ("Unauthorized", Trouble.UNAUTHORIZED, "log in again: `kubectl get nodes` must work first"),
    ("logged in", Trouble.UNAUTHORIZED, "log in again: `kubectl get nodes` must work first"),
    ("(NotFound)", Trouble.NOT_FOUND, ""),
    ("(Expired)", Trouble.EXPIRED, ""),
    ("(Gone)", Trouble.EXPIRED, ""),
    ("was refused", Trouble.UNREACHABLE, "is this the right cluster? `kubectl config current-context` shows it"),
    ("Unable to connect", Trouble.UNREACHABLE, "is this the right cluster? `kubectl config current-context` shows it"),
    ("does not exist", Trouble.UNREACHABLE, "`kubectl config get-contexts` lists those there are"),
    ("no configuration", Trouble.UNREACHABLE, "set KUBECONFIG, or name the file with --kubeconfig"),
)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl, and the flags that name the cluster and the user."""

    flags: tuple[str, ...] = ()

    def run(self, *words: str, stdin: bytes | None = None) -> bytes:
        """What it prints. Raises KubectlError."""
        binary = os.environ.get("KUBECTL") or "kubectl"
        try:
            done = output_of([binary, *words, *self.flags], stdin=stdin, seconds=_PATIENCE, most=_MOST)
        except FileNotFoundError as error:
            raise _no_kubectl(binary) from error
        except OSError as error:
            raise KubectlError(Trouble.NO_KUBECTL, f"{binary}: {error.strerror or error}") from error
        except subprocess.TimeoutExpired as error:
            raise KubectlError(
                Trouble.UNREACHABLE,
                f"kubectl {words[0]} did not answer in {_PATIENCE:g} s",
                "try --request-timeout=20s",
            ) from error
        except TooMuchError as error:
            raise KubectlError(Trouble.OTHER, f"kubectl {words[0]}: {error}") from error
        if done.returncode:
            raise _understood(done.stderr.decode(errors="replace"))
        return done.stdout

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        """One that runs on. What it prints is for us to read, its errors go where ours go. Raises KubectlError."""
        binary = os.environ.get("KUBECTL") or "kubectl"
        try:
            return subprocess.Popen(  # noqa: S603  # the user's own kubectl, with words and no shell
                [binary, *words, *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
        except FileNotFoundError as error:
            raise _no_kubectl(binary) from error
        except OSError as error:
            raise KubectlError(Trouble.NO_KUBECTL, f"{binary}: {error.strerror or error}") from error

    def get(self, path: str, **query: str) -> Any:
        """The object at this path of the API. Raises KubectlError."""
        import msgspec

        raw = self.run("get", "--raw", f"{path}?{urlencode(query)}" if query else path)
        try:
            return decoded(msgspec.json.decode, raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise KubectlError(Trouble.OTHER, f"kubectl printed no JSON for {path} ({error})") from error

    def items(self, path: str, kind: str, **query: str) -> list[JsonObject]:
        """All objects of a list, page by page; each says its kind, which the items of a list do not."""
        try:
            return list(self._pages(path, kind, {**query, "limit": str(_PAGE)}))
        except KubectlError as error:
            if error.trouble is not Trouble.EXPIRED:
                raise
        return list(self._pages(path, kind, query))  # too much changed between two pages: all of it in one

    def _pages(self, path: str, kind: str, query: Mapping[str, str]) -> Iterator[JsonObject]:
        further: dict[str, str] = {}
        pages = Pages(path)
        while True:
            page = self.get(path, **query, **further)
            page = page if isinstance(page, dict) else {}
            items, metadata = page.get("items"), page.get("metadata")
            yield from ({**item, "kind": kind} for item in items or [] if isinstance(item, dict))
            token = metadata.get("continue") if isinstance(metadata, dict) else None
            if not token:
                return
            try:
                further = {"continue": pages.follow(str(token))}
            except EndlessError as error:
                raise KubectlError(
                    Trouble.OTHER, str(error), "ask whoever runs the API server, or a proxy before it"
                ) from error

    def nodes(self, name: str | None = None) -> list[JsonObject]:
        """All Nodes, or the one with this name."""
        return self.items(NODES, "Node") if name is None else [{**self.get(f"{NODES}/{quote(name)}"), "kind": "Node"}]

    def pods(self, node: str | None = None) -> list[JsonObject]:
        """All Pods, or those of one node."""
        return self.items(PODS, "Pod", **({} if node is None else {"fieldSelector": f"spec.nodeName={node}"}))

    def resource_slices(self) -> list[JsonObject]:
        """All ResourceSlices; none where the cluster has none, or where we may not read them. Raises KubectlError."""
        try:
            group = self.get(SLICES)
            served = [version.get("version") for version in group.get("versions") or ()]
            version = next((version for version in SLICE_VERSIONS if version in served), None)
            return [] if version is None else self.items(f"{SLICES}/{version}/resourceslices", "ResourceSlice")
        except KubectlError as error:
            if error.trouble in (Trouble.NOT_FOUND, Trouble.FORBIDDEN):
                return []
            raise

    def resource_claims(self) -> list[JsonObject]:
        """All ResourceClaims; none where the cluster has no such kind. Raises KubectlError."""
        try:
            return self.items(f"{SLICES}/{SLICE_VERSIONS[0]}/resourceclaims", "ResourceClaim")
        except KubectlError as error:
            if error.trouble is Trouble.NOT_FOUND:
                return []
            raise

    def namespace(self) -> str:
        """The one that kubectl would use by itself."""
        text = self.run("config", "view", "--minify", "--output", "jsonpath={..namespace}")
        return text.decode(errors="replace").strip() or "default"


def _no_kubectl(binary: str) -> KubectlError:
    return KubectlError(
        Trouble.NO_KUBECTL, f"{binary} is not there", "install kubectl, or name it in the environment: KUBECTL"
    )


def _understood(text: str) -> KubectlError:
    """kubectl's words on one line, and what they mean. Its warnings and log lines are not the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not (line[:1] in "EWI" and line[1:5].isdigit())] or lines
    text = " ".join(lines).removeprefix("error: ") or "kubectl failed and printed nothing"
    for words, trouble, advice in _SAID:
        if words in text:
            return KubectlError(trouble, text, advice)
    return KubectlError(Trouble.OTHER, text)


def both(kubectl: Kubectl) -> tuple[list[JsonObject], list[JsonObject]]:
    """Nodes and Pods, asked for at the same time: most of it is waiting for kubectl. Raises KubectlError."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        pods = pool.submit(kubectl.pods)
        return kubectl.nodes(), pods.result()
