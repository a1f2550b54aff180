"""Where the API server is, and how we prove who we are to it.

A file that was named, else $KUBECONFIG, else the service account of the Pod we run in, else ~/.kube/config: the order
of kubectl, with the Pod's own account before a home folder that a container would not have.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_KEPT = 60.0  # seconds; the kubelet renews a service account's token long before it ends
_EXEC_PATIENCE = 60.0  # seconds; such a program may open a browser


class KubeConfigError(Exception):
    """What is wrong with the configuration, and where."""


class Credential:
    """The bearer token, read again from time to time: service accounts' tokens are replaced while we run."""

    def __init__(self, token: str | None = None, file: Path | None = None, command: Mapping[str, Any] | None = None):
        self._token, self._file, self._command = token, file, command
        self._read_at: float | None = None

    def token(self, now: float, *, fresh: bool = False) -> str | None:
        """The token now; `fresh` after the API server did not accept the last one."""
        if self._file is None and self._command is None:
            return self._token
        age = None if self._read_at is None else now - self._read_at
        if age is None or fresh or (self._file is not None and age > _TOKEN_KEPT):
            self._token = self._read()
            self._read_at = now
        return self._token

    @property
    def by_program(self) -> bool:
        """Whether a program gives it, and no file."""
        return self._command is not None and self._file is None

    def runs_program(self, refused: str | None) -> bool:
        """Whether a program, which may take long, must be asked for another token than that (None: for a first one)."""
        return self.by_program and self._token == refused

    def _read(self) -> str | None:
        if self._file is not None:
            try:
                return self._file.read_text().strip()
            except OSError as error:
                raise KubeConfigError(f"{self._file}: {error.strerror}") from error
        return _run_plugin(self._command or {})


@dataclass(frozen=True, slots=True)
class Server:
    """An API server, and us before it."""

    url: str
    tls: ssl.SSLContext | None = None
    credential: Credential = field(default_factory=Credential)
    namespace: str = "default"


def find_server(kubeconfig: Path | None = None, context: str | None = None) -> Server:
    """The API server to talk to. Raises KubeConfigError, which says what was looked for."""
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig, context)
    named = _by_variable()
    for path in named:
        if path.exists():
            return read_kubeconfig(path, context)
    if "KUBERNETES_SERVICE_HOST" in os.environ and (_ACCOUNT / "token").exists():
        return _in_cluster()
    home = Path("~/.kube/config").expanduser()
    if not named and home.exists():
        return read_kubeconfig(home, context)
    looked = ", ".join(map(str, named)) or f"$KUBECONFIG, {_ACCOUNT}, {home}"
    raise KubeConfigError(f"no API server is known: looked for {looked}; name a file with --kubeconfig")


def passed_over() -> list[Path]:
    """What $KUBECONFIG names, where none of it is there: as client-go, we go by the Pod's account then."""
    named = _by_variable()
    return [] if any(path.exists() for path in named) else named


def _by_variable() -> list[Path]:
    return [Path(word) for word in os.environ.get("KUBECONFIG", "").split(os.pathsep) if word]


def _in_cluster() -> Server:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    space = _ACCOUNT / "namespace"
    return Server(
        url=f"https://{host}:{port}",
        tls=_trusting(_ACCOUNT / "ca.crt"),
        credential=Credential(file=_ACCOUNT / "token"),
        namespace=space.read_text().strip() if space.exists() else "default",
    )


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise KubeConfigError(f"{ca_file}: not a certificate authority: {error}") from error


def read_kubeconfig(path: Path, context: str | None = None) -> Server:
    """The server of that context, or of the file's current one. Raises KubeConfigError."""
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KubeConfigError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not UTF-8, a date that is none, nested too deep
        raise KubeConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise KubeConfigError(f"{path}: not a kubeconfig: a mapping with clusters, users and contexts is wanted")
    name = context or config.get("current-context")
    if not isinstance(name, str) or not name:
        raise KubeConfigError(f"{path}: current-context is missing: name a context, as `kubectl config use-context`")
    chosen = _named(path, config, "contexts", "context", name)
    cluster = _named(path, config, "clusters", "cluster", chosen.get("cluster"))
    user = _named(path, config, "users", "user", chosen.get("user")) if chosen.get("user") else {}
    url = cluster.get("server")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise KubeConfigError(f'{path}: cluster {chosen.get("cluster")}: server: "{url}" is not a URL')
    return Server(
        url=url.rstrip("/"),
        tls=_tls(path, cluster, user) if url.startswith("https://") else None,
        credential=_credential(path, user),
        namespace=chosen.get("namespace") or "default",
    )


def _named(path: Path, config: dict[str, Any], many: str, one: str, name: object) -> dict[str, Any]:
    listed = config.get(many)
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("name") == name and isinstance(each.get(one), dict):
            found: dict[str, Any] = each[one]
            return found
    raise KubeConfigError(f'{path}: {many} has none that is called "{name}"')


def _credential(path: Path, user: dict[str, Any]) -> Credential:
    if user.get("tokenFile"):
        return Credential(file=_beside(path, user["tokenFile"]))
    if isinstance(user.get("exec"), dict):
        return Credential(command=user["exec"])
    if "auth-provider" in user:
        raise KubeConfigError(f"{path}: auth-provider is gone since Kubernetes 1.26: use an exec plugin or a token")
    return Credential(user.get("token"))


def _beside(path: Path, name: object) -> Path:
    """Paths in a kubeconfig are relative to it."""
    return path.parent / str(name)


def _tls(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    ca = _material(path, cluster, "certificate-authority")
    try:  # the machine's own authorities only where the file names none: they take a while to load
        context = ssl.create_default_context(cadata=None if ca is None else ca.decode())
    except (ssl.SSLError, ValueError) as error:
        raise KubeConfigError(f"{path}: certificate-authority: not a certificate: {error}") from error
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _material(path, user, "client-certificate"), _material(path, user, "client-key")
    if (certificate is None) != (key is None):
        lacks = "client-certificate" if certificate is None else "client-key"
        raise KubeConfigError(f"{path}: {lacks} is missing: a certificate and its key are needed, or neither")
    if certificate is not None and key is not None:
        _present(path, context, certificate, key)
    return context


def _material(path: Path, part: dict[str, Any], name: str) -> bytes | None:
    if part.get(f"{name}-data"):
        try:
            return base64.b64decode(part[f"{name}-data"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise KubeConfigError(f"{path}: {name}-data: not base64: {error}") from error
    if not part.get(name):
        return None
    file = _beside(path, part[name])
    try:
        return file.read_bytes()
    except OSError as error:
        raise KubeConfigError(f"{file}: {error.strerror}") from error


def _present(path: Path, context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL reads these from files only: they are there for a moment, for our eyes only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            raise KubeConfigError(f"{path}: client-certificate and client-key do not belong together") from error


def _run_plugin(command: Mapping[str, Any]) -> str | None:
    """The token of an exec plugin (client.authentication.k8s.io), as cloud vendors ship them."""
    program = str(command.get("command", ""))
    ask = {"apiVersion": command.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    try:
        words = [program, *map(str, command.get("args") or [])]
        env = {str(each["name"]): str(each["value"]) for each in command.get("env") or []}
        done = subprocess.run(  # noqa: S603  # the user's own kubeconfig names it, as for kubectl
            words,
            env={**os.environ, **env, "KUBERNETES_EXEC_INFO": json.dumps(ask)},
            capture_output=True,
            timeout=_EXEC_PATIENCE,
            check=True,
        )
        status = json.loads(done.stdout).get("status") or {}
    except (KeyError, TypeError) as error:
        raise KubeConfigError(
            f"the login program {program}: args is a list of words, and env one of name and value"
        ) from error
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError) as error:
        raise KubeConfigError(f"the login program {program} of the kubeconfig failed: {error}") from error
    if "token" not in status:
        raise KubeConfigError(f"the login program {program} gave no token; client certificates of plugins are not read")
    return str(status["token"])


def monotonic() -> float:
    """The clock that tokens age by."""
    return time.monotonic()
