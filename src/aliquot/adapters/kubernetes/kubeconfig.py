"""Where the API server is, and how we reach it.

A file that was named, else $KUBECONFIG, else the service account of the Pod we run in, else ~/.kube/config: the order
of kubectl, with the Pod's own account before a home folder that a container would not have.

Each field of a kubeconfig is used as kubectl uses it, or refused by name. Two need nothing: disable-compression (we
never ask for compression) and a login program's expirationTimestamp (it runs again when a token is not accepted).
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from aliquot.adapters.kubernetes.credentials import BY_KUBECTL_PROXY, Credential, KubeConfigError, parse_exec
from aliquot.model.decoding.openjson import JsonObject

__all__ = ["KubeConfigError", "Server", "find_server", "monotonic", "passed_over", "read_kubeconfig"]

_File = tuple[Path, JsonObject]  # a part of a kubeconfig, with the file that it is from

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Server:
    """An API server, and us before it."""

    url: str
    tls: ssl.SSLContext | None = None
    credential: Credential = field(default_factory=Credential)
    namespace: str = "default"
    proxy: str | None = None  # of HTTP, http:// or https://
    server_name: str | None = None  # in the server's certificate, where that is not the host of the URL
    headers: tuple[tuple[str, str], ...] = ()  # of every request: a password, impersonation


def find_server(kubeconfig: Path | None = None, context: str | None = None) -> Server:
    """The API server to talk to. Raises KubeConfigError, which says what was looked for."""
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig, context)
    named = _by_variable()
    if there := [path for path in named if path.exists()]:
        return _merged(there, context)
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
    return _merged((path,), context)


def _merged(paths: Sequence[Path], context: str | None) -> Server:
    """Several files count as one: of each name, the first file that has it. Each file's paths are relative to it."""
    files = [(path, _load(path)) for path in paths]
    where = ", ".join(map(str, paths))
    name = context or next((config["current-context"] for _, config in files if config.get("current-context")), None)
    if not isinstance(name, str) or not name:
        raise KubeConfigError(f"{where}: current-context is missing: name a context, as `kubectl config use-context`")
    path, chosen = _named(files, "contexts", "context", name)
    at_cluster, cluster = _named(files, "clusters", "cluster", chosen.get("cluster"))
    at_user, user = _named(files, "users", "user", chosen["user"]) if chosen.get("user") else (path, {})
    url = cluster.get("server")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise KubeConfigError(f'{at_cluster}: cluster {chosen.get("cluster")}: server: "{url}" is not a URL')
    secure = url.startswith("https://")
    authority = _material(at_cluster, cluster, "certificate-authority") if secure else None
    return Server(
        url=url.rstrip("/"),
        tls=_tls(at_cluster, cluster, authority, at_user, user) if secure else None,
        credential=_credential(at_user, user, _for_plugins(cluster, authority)),
        namespace=_text(path, chosen, "namespace") or "default",
        proxy=_proxy(at_cluster, cluster),
        server_name=_text(at_cluster, cluster, "tls-server-name") or None,
        headers=(*_basic(at_user, user), *_impersonation(at_user, user)),
    )


def _load(path: Path) -> JsonObject:
    import yaml  # a program in a cluster has no such file, and starts 14 ms sooner

    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KubeConfigError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not UTF-8, a date that is none, nested too deep
        raise KubeConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise KubeConfigError(f"{path}: not a kubeconfig: a mapping with clusters, users and contexts is wanted")
    return config


def _named(files: Sequence[_File], many: str, one: str, name: object) -> _File:
    for path, config in files:
        listed = config.get(many)
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(one), dict):
                return path, entry[one]
    raise KubeConfigError(f'{", ".join(str(path) for path, _ in files)}: {many} has no entry named "{name}"')


def _text(path: Path, part: Mapping[str, Any], name: str) -> str:
    """That field, "" where it is missing. The value is not in the error: it may be a password."""
    return _line(path, name, "" if part.get(name) is None else part[name])


def _line(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise KubeConfigError(f"{path}: {name}: text is wanted, not {type(value).__name__}: put it in quotes")
    if any(char < " " or char == "\x7f" for char in value):
        raise KubeConfigError(f"{path}: {name}: has a line break or another control character: remove it")
    return value


def _flag(path: Path, part: Mapping[str, Any], name: str) -> bool:
    value = part.get(name)
    if value is not None and not isinstance(value, bool):
        raise KubeConfigError(f'{path}: {name}: "{value}" is not true or false (without quotes)')
    return bool(value)


def _credential(path: Path, user: JsonObject, cluster: Mapping[str, Any]) -> Credential:
    """As kubectl: a file with a token goes before `token`, and a login program runs where nothing else is given."""
    provider = user.get("auth-provider")
    if provider is not None:
        name = provider.get("name") if isinstance(provider, dict) else provider
        raise KubeConfigError(
            f'{path}: auth-provider "{name}" is not supported:'
            f" use a login program (exec) or a token, {BY_KUBECTL_PROXY}"
        )
    token, file = _text(path, user, "token"), _text(path, user, "tokenFile")
    if (token or file) and user.get("username"):
        raise KubeConfigError(f"{path}: token and username are both given: remove one, the API server takes one login")
    if file:
        return Credential(token or None, file=_beside(path, file))
    given = token or user.get("username") or user.get("client-certificate") or user.get("client-certificate-data")
    if user.get("exec") is not None and not given:
        return Credential(plugin=parse_exec(path, user["exec"], cluster))
    return Credential(token or None)


def _for_plugins(cluster: Mapping[str, Any], authority: bytes | None) -> JsonObject:
    """What a login program with provideClusterInfo gets: the cluster, with the authority and not its file's name."""
    fields = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    info = {name: cluster[name] for name in fields if cluster.get(name)}
    if authority is not None:
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    extensions = cluster.get("extensions")
    for entry in extensions if isinstance(extensions, list) else ():
        if isinstance(entry, dict) and entry.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = entry.get("extension")
    return info


def _basic(path: Path, user: JsonObject) -> list[tuple[str, str]]:
    """Kubernetes' own servers stopped taking passwords in 1.19; gateways in front of them still do."""
    name, password = _text(path, user, "username"), _text(path, user, "password")
    if password and not name:
        raise KubeConfigError(f"{path}: password is given without username: name both")
    login = base64.b64encode(f"{name}:{password}".encode()).decode()
    return [("Authorization", f"Basic {login}")] if name else []


def _impersonation(path: Path, user: JsonObject) -> list[tuple[str, str]]:
    """The headers of `as`, `as-uid`, `as-groups` and `as-user-extra`."""
    name, uid = _text(path, user, "as"), _text(path, user, "as-uid")
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    if not isinstance(groups, list):
        raise KubeConfigError(f"{path}: as-groups: a list of groups is wanted")
    if not isinstance(extra, dict) or not all(isinstance(values, list) for values in extra.values()):
        raise KubeConfigError(f"{path}: as-user-extra: a mapping of names to lists of values is wanted")
    if not name:
        if uid or groups or extra:
            raise KubeConfigError(f"{path}: as-uid, as-groups or as-user-extra is given without as: name the user")
        return []
    headers = [("Impersonate-User", name)]
    headers += [("Impersonate-Uid", uid)] if uid else []
    headers += [("Impersonate-Group", _line(path, "as-groups", group)) for group in groups]
    for key, values in extra.items():
        # A name may have what a header's name may not: https://kubernetes.io/docs/reference/access-authn-authz/authentication
        header = "Impersonate-Extra-" + quote(_line(path, "as-user-extra", key), safe="!#$&'*+-.^_`|~")
        headers += [(header, _line(path, "as-user-extra", value)) for value in values]
    return headers


def _proxy(path: Path, cluster: JsonObject) -> str | None:
    """Errors name its scheme only: there may be a password in the rest."""
    proxy = _text(path, cluster, "proxy-url")
    if not proxy:
        return None
    try:
        parts = urlsplit(proxy)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise KubeConfigError(f"{path}: proxy-url: not a URL: {error}") from error
    if parts.scheme.startswith("socks"):
        raise KubeConfigError(
            f"{path}: proxy-url: {parts.scheme} is not supported: name an http:// or https:// proxy, {BY_KUBECTL_PROXY}"
        )
    if parts.scheme not in ("http", "https") or not usable:
        raise KubeConfigError(f"{path}: proxy-url: http://HOST:PORT or https://HOST:PORT is wanted")
    return proxy


def _beside(path: Path, name: object) -> Path:
    """Paths in a kubeconfig are relative to it."""
    return path.parent / str(name)


def _tls(
    at_cluster: Path, cluster: JsonObject, authority: bytes | None, path: Path, user: JsonObject
) -> ssl.SSLContext:
    blind = _flag(at_cluster, cluster, "insecure-skip-tls-verify")
    if blind and authority is not None:  # kubectl refuses it, too: which of the two is meant?
        raise KubeConfigError(
            f"{at_cluster}: insecure-skip-tls-verify and certificate-authority are both given: remove one"
        )
    try:  # the machine's own authorities only where the file names none: they take a while to load
        context = ssl.create_default_context(cadata=None if authority is None else authority.decode())
    except (ssl.SSLError, ValueError) as error:
        raise KubeConfigError(f"{at_cluster}: certificate-authority: not a certificate: {error}") from error
    if blind:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _material(path, user, "client-certificate"), _material(path, user, "client-key")
    if (certificate is None) != (key is None):
        lacks = "client-certificate" if certificate is None else "client-key"
        raise KubeConfigError(f"{path}: {lacks} is missing: a certificate and its key are needed, or neither")
    if certificate is not None and key is not None:
        _present(path, context, certificate, key)
    return context


def _material(path: Path, part: JsonObject, name: str) -> bytes | None:
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


def monotonic() -> float:
    """The clock that tokens age by."""
    return time.monotonic()
