"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-schedulers.

    with ControlPlane() as plane:
        plane.api("POST", "/api/v1/nodes", objects.node("n1", {"qgpu": 8}))
        plane.kubectl("get", "nodes")

`python tests/testbed/plane.py` starts one to look at, until Ctrl-C. All controllers run. Nodes are made by hand
(objects.py): there is no kubelet, so silent nodes count as alive for a day, and no program ends a Pod that is given a
grace period. Nodes of nodes.py are real.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

if __name__ == "__main__":  # otherwise pytest, or another importer, has the tests folder on its path
    sys.path.insert(0, str(Path(__file__).parent.parent))

from testbed.build import RELEASE, binaries
from testbed.client import JSON, Client, Refused
from testbed.processes import Program, Startable, free_port, wait_until

HOST = "127.0.0.1"
ADMIN = "admin"
SCHEDULER = "system:kube-scheduler"
_A_DAY = "24h"


class KubeScheduler(Program):
    """A kube-scheduler with a configuration of the test's."""

    def __init__(
        self,
        binary: Path,
        config: Path,
        folder: Path,
        *,
        name: str,
        authority: Path,
        token: str,
        more: Sequence[str] = (),
    ) -> None:
        self.port = free_port()
        self.config = config
        flags = [
            f"--config={config}",
            f"--bind-address={HOST}",
            f"--secure-port={self.port}",
            f"--cert-dir={folder / f'{name}-pki'}",
            f"--authentication-kubeconfig={authority}",
            f"--authorization-kubeconfig={authority}",
            "--authentication-tolerate-lookup-failure=true",
            "-v=2",
            *more,
        ]
        super().__init__([binary, *flags], folder / f"{name}.log", name=name)
        self._certificate = folder / f"{name}-pki" / "kube-scheduler.crt"
        self._ask = Client(HOST, self.port, self._certificate, token, timeout=10)
        self.wait_ready(self._says_ready, 30)

    def metrics(self) -> str:
        """What it tells Prometheus."""
        return str(self._ask("GET", "/metrics"))

    def _says_ready(self) -> bool:
        if not self._certificate.exists():
            return False
        try:
            self._ask("GET", "/readyz" if RELEASE >= (1, 31) else "/healthz")
        except Refused:
            return False
        return True


class ControlPlane(Startable):
    """One control plane with its own ports, data, certificates and tokens, in a folder of its own."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        keep: bool = False,
        apiserver_flags: Sequence[str] = (),
        silent_nodes: bool = True,
        feature_gates: str = "",
    ) -> None:
        """With `silent_nodes`, nodes made by hand need no heartbeats. `feature_gates` are for all programs."""
        self._programs = binaries()
        self.folder = folder or Path(tempfile.mkdtemp(prefix="aliquot-plane-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keep = keep or folder is not None
        self._gates = (f"--feature-gates={feature_gates}",) if feature_gates else ()
        self._apiserver_flags = (*self._gates, *apiserver_flags)
        self._silent_nodes = silent_nodes
        self.port, self.etcd_port, self._etcd_peer_port = free_port(), free_port(), free_port()
        self.url = f"https://{HOST}:{self.port}"
        self.token = secrets.token_hex(16)
        self._tokens = {self.token: (ADMIN, ("system:masters",)), secrets.token_hex(16): (SCHEDULER, ())}
        self._pki = self.folder / "pki"
        # The API server signs for itself, and the file holds its authority too: no openssl is needed.
        self.ca_file = self._pki / "apiserver.crt"
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.api = Client(HOST, self.port, self.ca_file, self.token)
        self._etcd: Program | None = None
        self._apiserver: Program | None = None
        self._others: list[Program] = []
        self._names: set[str] = set()

    # Start and end

    def start(self) -> None:
        """Ready for Pods when this returns: the default service account exists, without which none is let in."""
        self._write_tokens()
        self._start_etcd()
        self.start_apiserver()
        _write_kubeconfig(self.kubeconfig, self.url, self.ca_file, self.token)
        self._start_controllers()
        wait_until(self._default_account, 30, "the default service account exists", every=0.05)

    def stop(self) -> None:
        """Stop all programs: those that use others end first."""
        for program in reversed(self._others):
            program.stop()
        self._others.clear()
        self.stop_apiserver()
        if self._etcd is not None:
            self._etcd.stop()
            self._etcd = None
        gone = self.folder / "etcd" if self._keep else self.folder  # logs are worth keeping, data is not
        shutil.rmtree(gone, ignore_errors=True)

    def tell_apiserver(self, *flags: str) -> None:
        """These flags too, at its next start; a later one of the same name wins."""
        self._apiserver_flags += flags

    def start_apiserver(self) -> None:
        """On the port, data and certificates it had before, if it ran before; nothing happens while it runs."""
        if self._apiserver is not None and self._apiserver.running:
            return
        command: list[str | Path] = [self._programs["kube-apiserver"], *self._apiserver_words(), *self._apiserver_flags]
        self._apiserver = Program(command, self.folder / "kube-apiserver.log")
        self.api.forget_connections()
        self._apiserver.wait_ready(self.ready, 60)

    def stop_apiserver(self, *, kill: bool = False) -> None:
        """Nobody answers afterwards, until `start_apiserver`. With a second for goodbyes, or with none."""
        if self._apiserver is not None:
            self._apiserver.kill() if kill else self._apiserver.stop(patience=1)  # open watches hold it for a minute
            self._apiserver = None
        self.api.forget_connections()

    def restart_apiserver(self, *, kill: bool = False) -> None:
        self.stop_apiserver(kill=kill)
        self.start_apiserver()

    def ready(self) -> bool:
        """Whether the API server says it is."""
        if not self.ca_file.exists():
            return False
        try:
            return bool(self.api("GET", "/readyz") == "ok")
        except Refused:
            return False

    def _default_account(self) -> bool:
        try:
            self.api("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except Refused:
            return False
        return True

    # What tests do with it

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True, kubeconfig: Path | None = None) -> str:
        """What kubectl printed; with `check` off also what it complained of, after that."""
        done = subprocess.run(
            [self._programs["kubectl"], *args],
            input=stdin,
            env={**os.environ, "KUBECONFIG": str(kubeconfig or self.kubeconfig), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if not check:
            return done.stdout + done.stderr
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(args)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def client_for(self, kubeconfig: Path) -> Client:
        """A client like `api`, with the rights of that kubeconfig."""
        token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
        return Client(HOST, self.port, self.ca_file, token)

    def kubeconfig_for(
        self, service_account: str | None = None, *, user: str | None = None, groups: Sequence[str] = ()
    ) -> Path:
        """A kubeconfig with the rights of a service account ("namespace/name", made if missing) or of a user.

        A new user costs a restart of the API server, which reads its users once; a service account costs nothing.
        """
        assert (service_account is None) != (user is None), "either a service account or a user"
        if service_account is not None:
            token = self._account_token(*service_account.split("/"))
        else:
            token = self._user_token(str(user), tuple(groups))
        name = (service_account or str(user)).replace("/", "_").replace(":", "_")
        path = self.folder / f"{name}.kubeconfig"
        _write_kubeconfig(path, self.url, self.ca_file, token)
        return path

    def start_scheduler(self, config: Mapping[str, Any] | Path, name: str = "kube-scheduler") -> KubeScheduler:
        """A kube-scheduler that answers ready, with the rights Kubernetes gives it.

        The configuration is taken as it is but for where the API server is (clientConnection.kubeconfig) and, where
        nothing is said of it, leader election, which is off.
        """
        said = dict(config) if isinstance(config, Mapping) else yaml.safe_load(config.read_text())
        said.setdefault("leaderElection", {"leaderElect": False})
        kubeconfig = self.folder / "kube-scheduler.kubeconfig"
        _write_kubeconfig(kubeconfig, self.url, self.ca_file, self._user_token(SCHEDULER, ()))
        said["clientConnection"] = {**said.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
        name = self._unused(name)
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(said))
        binary = self._programs["kube-scheduler"]
        scheduler = KubeScheduler(
            binary, path, self.folder, name=name, authority=self.kubeconfig, token=self.token, more=self._gates
        )
        self._others.append(scheduler)
        return scheduler

    def compact(self) -> int:
        """Forgets history: a watch or a list from before now is answered 410 Gone. The oldest revision still known.

        etcd alone is not enough: the API server answers from its watch cache what etcd has long forgotten. So it is
        restarted, and its cache begins at a revision that no client has seen.
        """
        self.stop_apiserver()
        for _ in range(3):
            self._ask_etcd("kv/put", {"key": "YWxpcXVvdA==", "value": "eA=="})
        answer = self._ask_etcd("kv/range", {"key": "YWxpcXVvdA=="})
        revision = int(answer["header"]["revision"])
        self._ask_etcd("kv/compaction", {"revision": revision, "physical": True})
        self.start_apiserver()
        return revision

    # How it is put together

    def _start_etcd(self) -> None:
        client, peer = f"http://{HOST}:{self.etcd_port}", f"http://{HOST}:{self._etcd_peer_port}"
        flags = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # a test's data need not outlive the machine
            "--quota-backend-bytes=4294967296",  # room for benchmarks
            "--log-level=warn",
        ]
        self._etcd = Program([self._programs["etcd"], *flags], self.folder / "etcd.log")
        self._etcd.wait_ready(lambda: _http(f"{client}/health").get("health") == "true", 30)

    def _apiserver_words(self) -> list[str]:
        own_key = (
            self._pki / "apiserver.key"
        )  # made by the API server at its first start, before it reads it as a signing key
        return [
            f"--etcd-servers=http://{HOST}:{self.etcd_port}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self.port}",
            f"--cert-dir={self._pki}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={own_key}",
            f"--service-account-signing-key-file={own_key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",  # it would look for an address other than loopback
            # A node made by hand would wait for a controller to clear its taint.
            *(["--disable-admission-plugins=TaintNodesByCondition"] if self._silent_nodes else []),
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",  # the names of real nodes are in no DNS
            "--max-requests-inflight=3000",  # benchmarks measure the product, not the API server's limits
            "--max-mutating-requests-inflight=1500",
            "--delete-collection-workers=16",  # tests tidy up thousands of objects
            "--profiling=false",
        ]

    def _start_controllers(self) -> None:
        patience = [f"--node-{which}-grace-period={_A_DAY}" for which in ("monitor", "startup")]
        flags = [
            f"--kubeconfig={self.kubeconfig}",
            *(patience if self._silent_nodes else []),
            f"--service-account-private-key-file={self._pki / 'apiserver.key'}",
            f"--root-ca-file={self.ca_file}",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--secure-port=0",
            *self._gates,
        ]
        command: list[str | Path] = [self._programs["kube-controller-manager"], *flags]
        self._others.append(Program(command, self.folder / "kube-controller-manager.log"))

    def _ask_etcd(self, verb: str, body: Mapping[str, object]) -> dict[str, Any]:
        return _http(f"http://{HOST}:{self.etcd_port}/v3/{verb}", json.dumps(body).encode())

    def _account_token(self, namespace: str, name: str) -> str:
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        for path, body in (
            ("/api/v1/namespaces", {"metadata": {"name": namespace}}),
            (accounts, {"metadata": {"name": name}}),
        ):
            try:
                self.api("POST", path, body)
            except Refused as error:
                if error.status != 409:
                    raise
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400},
        }
        return str(self.api("POST", f"{accounts}/{name}/token", request)["status"]["token"])

    def _user_token(self, user: str, groups: tuple[str, ...]) -> str:
        for token, known in self._tokens.items():
            if known == (user, groups):
                return token
        token = secrets.token_hex(16)
        self._tokens[token] = (user, groups)
        self._write_tokens()
        self.restart_apiserver()
        return token

    def _write_tokens(self) -> None:
        lines = [f'{token},{user},{user},"{",".join(groups)}"\n' for token, (user, groups) in self._tokens.items()]
        file = self.folder / "tokens.csv"
        file.touch(mode=0o600)
        file.write_text("".join(lines))

    def _unused(self, name: str) -> str:
        """Each start has its own log and folder, also when a test starts the same thing again."""
        count, free = 1, name
        while free in self._names:
            count += 1
            free = f"{name}-{count}"
        self._names.add(free)
        return free


def _write_kubeconfig(path: Path, url: str, ca_file: Path, token: str) -> None:
    path.touch(mode=0o600)
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "testbed", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
                "users": [{"name": "testbed", "user": {"token": token}}],
                "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
                "current-context": "testbed",
            }
        )
    )


def _http(url: str, body: bytes | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": JSON})
    with urllib.request.urlopen(request, timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def main() -> None:
    began = time.monotonic()
    with ControlPlane() as plane:
        print(f"ready after {time.monotonic() - began:.1f} s; in another terminal:")
        print(f"  export KUBECONFIG={plane.kubeconfig}")
        print(f"logs are in {plane.folder}, gone at the end; Ctrl-C ends it")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("ending ...")


if __name__ == "__main__":
    main()
