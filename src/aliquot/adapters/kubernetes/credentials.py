"""How we log in to the API server: a token, a file with one, or a login program (exec plugin) that prints one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.adapters.kubernetes.programs import output_of

BY_KUBECTL_PROXY = "or start `kubectl proxy` and use a kubeconfig whose server is http://127.0.0.1:8001"

_FILE_TOKEN_SECONDS = 60.0  # the kubelet renews a service account's token long before it expires
_PLUGIN_SECONDS = 60.0  # a login program may open a browser
_PLUGIN_OUTPUT = 1 << 20  # bytes
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class KubeConfigError(Exception):
    """What is wrong with the configuration, and where."""


def _is_token(text: str) -> bool:
    """Whether it can be sent: a line end in it would begin another header."""
    return text.isascii() and text.isprintable()


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A login program of a kubeconfig, as cloud vendors ship them. It prints an ExecCredential."""

    words: tuple[str, ...]
    api_version: str = _VERSIONS[0]
    env: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None  # what it learns of the cluster, with provideClusterInfo

    def token(self) -> str:
        """Run it. Raises KubeConfigError."""
        program = self.words[0]
        spec = {"interactive": False} | ({} if self.cluster is None else {"cluster": self.cluster})
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        try:
            done = output_of(
                self.words,
                env={**os.environ, **self.env, "KUBERNETES_EXEC_INFO": json.dumps(info, default=str)},
                seconds=_PLUGIN_SECONDS,
                most=_PLUGIN_OUTPUT,
            )
            done.check_returncode()
            status = json.loads(done.stdout).get("status") or {}
            token = str(status.get("token") or "")
        except (FileNotFoundError, PermissionError) as error:  # also where PATH has another user's folder
            hint = f": {self.install_hint}" if self.install_hint else ""
            raise KubeConfigError(f"the login program {program} of the kubeconfig failed: {error}{hint}") from error
        except subprocess.CalledProcessError as error:
            last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            why = f": {last[:200]}" if last else ""
            raise KubeConfigError(f"the login program {program} of the kubeconfig failed: {error}{why}") from error
        except (OSError, subprocess.SubprocessError, ValueError, AttributeError, RecursionError) as error:
            raise KubeConfigError(f"the login program {program} of the kubeconfig failed: {error}") from error
        if not token:
            raise KubeConfigError(
                f"the login program {program} gave no token; a client certificate from a login program is not"
                f" supported: let it print a token, {BY_KUBECTL_PROXY}"
            )
        return token


def parse_exec(path: Path, config: object, cluster: Mapping[str, Any]) -> ExecPlugin:
    """A user's `exec`; `cluster` is what provideClusterInfo passes on. Raises KubeConfigError."""
    if not isinstance(config, dict):
        raise KubeConfigError(f"{path}: exec: a mapping with command and apiVersion is wanted")
    program = str(config.get("command") or "")
    version = config.get("apiVersion")
    if not program:
        raise KubeConfigError(f"{path}: exec: command is missing: name the login program")
    if version not in _VERSIONS:
        raise KubeConfigError(
            f'{path}: exec: apiVersion "{version}" is not supported: use {" or ".join(_VERSIONS)};'
            f" a newer release of {program} may be needed"
        )
    if config.get("interactiveMode") == "Always":
        raise KubeConfigError(
            f"{path}: exec: interactiveMode: Always is not supported: the login program {program} gets no terminal;"
            f" use a token, {BY_KUBECTL_PROXY}"
        )
    try:
        arguments = [str(word) for word in config.get("args") or []]
        env = {str(variable["name"]): str(variable["value"]) for variable in config.get("env") or []}
    except (KeyError, TypeError) as error:
        raise KubeConfigError(
            f"{path}: the login program {program}: args is a list of words, env a list of mappings with name and value"
        ) from error
    if os.sep in program:  # found by $PATH otherwise, as kubectl does
        program = str(path.parent / program)
    return ExecPlugin(
        (program, *arguments),
        str(version),
        env,
        str(config.get("installHint") or ""),
        cluster if config.get("provideClusterInfo") else None,
    )


class Credential:
    """The bearer token, read again from time to time: service accounts' tokens are replaced while we run."""

    def __init__(self, token: str | None = None, file: Path | None = None, plugin: ExecPlugin | None = None) -> None:
        self._token, self._file, self._plugin = token, file, plugin
        self._read_at: float | None = None

    def token(self, now: float, *, fresh: bool = False) -> str | None:
        """The token now; `fresh` after the API server did not accept the last one."""
        if self._file is None and self._plugin is None:
            return self._token
        age = None if self._read_at is None else now - self._read_at
        if age is None or fresh or (self._file is not None and age > _FILE_TOKEN_SECONDS):
            self._token = self._plugin.token() if self._plugin is not None else self._from_file()
            if not _is_token(self._token):
                self._token = None
                origin = f"of {self._file}" if self._plugin is None else f"that {self._plugin.words[0]} printed"
                raise KubeConfigError(f"the token {origin} has characters that a token cannot have")
            self._read_at = now
        return self._token

    @property
    def by_program(self) -> bool:
        """Whether a login program gives it."""
        return self._plugin is not None

    def runs_program(self, refused: str | None) -> bool:
        """Whether the login program must run, which may take long: the current token was refused, or is missing."""
        return self.by_program and self._token == refused

    def _from_file(self) -> str:
        """What the file says; where it cannot be read, the last token, or `token` beside it, as kubectl does."""
        assert self._file is not None
        try:
            token = self._file.read_text().strip()
            why = "the file is empty"
        except (OSError, ValueError) as error:
            token, why = "", getattr(error, "strerror", None) or str(error)
        if not token and not self._token:
            raise KubeConfigError(f"{self._file}: {why}")
        return token or self._token or ""
