"""`aliquot doctor`: what is wrong with the installation on a cluster, each with its fix.

The checks themselves are pure (schedulerchecks, nodechecks, podchecks); here their objects are asked for, and what one
may not see becomes a finding of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aliquot.cli.findings import Finding, Json, Level, grouped, ok, part
from aliquot.cli.kubectl import CONFIG_MAPS, Kubectl, KubectlError, Trouble, kubectl_options, reach
from aliquot.cli.tables import printable

if TYPE_CHECKING:
    from aliquot.cli.schedulerchecks import Probe

_T = TypeVar("_T")

_WIDEST = 14  # of a check's name


@click.command()
@click.option("-n", "--namespace", default="default", show_default=True, help="Where the trial Pods would be made")
@click.option("--lease-namespace", default="kube-system", show_default=True, help="Of the scheduler's Lease and Secret")
@click.option("--lease-name", default="aliquot-scheduler", show_default=True)
@click.option("--rules", type=click.Choice(["seed", "2026"]), default="seed", show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@kubectl_options
@click.pass_context
def doctor(
    context: click.Context,
    namespace: str,
    lease_namespace: str,
    lease_name: str,
    rules: str,
    output: str,
    kubectl: Kubectl,
) -> None:
    """Look for what is wrong with aliquot on a cluster, and say what to do.

    Nothing is changed: Pods are tried with --dry-run=server. Exit code 0 when nothing is wrong, 1 with findings, 2 when
    the cluster cannot be seen at all.
    """
    version = reach(lambda: kubectl.get("/version"))  # the one thing that everybody may read
    cluster = _Cluster(kubectl, namespace, lease_namespace, lease_name)
    cluster.findings.append(ok("api", f"Kubernetes {part(version, 'gitVersion')} answers"))
    findings = grouped([*cluster.findings, *_examine(cluster, rules)])
    wrong = sum(each.level in (Level.FINDING, Level.UNKNOWN) for each in findings)
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode([_entry(each) for each in findings]), indent=2).decode())
    else:
        for line in _lines(findings):
            click.echo(printable(line))
        click.echo(f"\n{wrong} finding{'s' * (wrong != 1)}" if wrong else "\nnothing is wrong")
    context.exit(1 if wrong else 0)


# --- asking --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cluster:
    """What there is to ask, and what was found out by asking."""

    kubectl: Kubectl
    namespace: str
    lease_namespace: str
    lease_name: str
    findings: list[Finding] = field(default_factory=list)

    def lease(self) -> Json | None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.lease_namespace}/leases/{self.lease_name}"
        return self._one("scheduler", path)

    def webhook(self) -> Json | None:
        from aliquot.dialects.webhooks import CONFIGURATION, CONFIGURATIONS_PATH

        return self._one("webhook", f"{CONFIGURATIONS_PATH}/{CONFIGURATION}")

    def authority(self) -> str | None:
        """The certificate that signs the webhook's; Secrets are seldom readable, and the trials tell as much."""
        from aliquot.dialects.webhooks import CA_CERTIFICATES, SECRET, secrets_path

        try:
            secret = self.kubectl.get(f"{secrets_path(self.lease_namespace)}/{SECRET}")
        except KubectlError:
            return None
        told = part(secret, "data", CA_CERTIFICATES)
        return told if isinstance(told, str) else None

    def trial(self, pod: Json) -> Probe:
        """What the API server would make of the Pod."""
        import msgspec

        from aliquot.cli.schedulerchecks import Probe

        words = ("create", "--dry-run=server", "--output=json", f"--namespace={self.namespace}", "--filename", "-")
        try:
            answer = msgspec.json.decode(self.kubectl.run(*words, stdin=msgspec.json.encode(pod)))
        except KubectlError as error:
            return Probe(None, error.said)
        except msgspec.DecodeError as error:
            return Probe(None, f"what kubectl printed is no JSON ({error})")
        return Probe(answer if isinstance(answer, dict) else None, None)

    def _one(self, check: str, path: str) -> Json | None:
        """One object; an empty one where we may not look, None where it is not there."""

        def ask() -> Json | None:
            try:
                got = self.kubectl.get(path)
            except KubectlError as error:
                if error.trouble is Trouble.NOT_FOUND:
                    return None
                raise
            return got if isinstance(got, dict) else None

        before = len(self.findings)
        found = self.allowed(check, ask, path)
        return {} if len(self.findings) > before else found

    def allowed(self, check: str, ask: Callable[[], _T], what: str) -> _T | None:
        """What was asked for, or None and one more finding."""
        try:
            return ask()
        except KubectlError as error:
            self.findings.append(Finding(check, Level.UNKNOWN, (what,), error.said, error.advice or None))
            return None


def _examine(cluster: _Cluster, qgpu_rules: str) -> Iterator[Finding]:
    from aliquot import dialects
    from aliquot.cli.schedulerchecks import (
        Probe,
        broken_pod,
        call_findings,
        exclusive_pod,
        lease_findings,
        webhook_findings,
    )

    now = datetime.now(UTC)
    kubectl = cluster.kubectl
    nodes = cluster.allowed("nodes", kubectl.nodes, "nodes")
    pods = cluster.allowed("pods", kubectl.pods, "pods")
    sick = cluster.allowed("cards", lambda: kubectl.items(CONFIG_MAPS, "ConfigMap"), CONFIG_MAPS)
    rules = dialects.Rules(dialects.QgpuRules(qgpu_rules), dialects.guess_gpushare_unit(nodes or []))
    lease, webhook = cluster.lease(), cluster.webhook()
    yield from cluster.findings[1:]  # what we were not let see
    cluster.findings[1:] = []
    if lease != {}:
        yield from lease_findings(lease, f"{cluster.lease_namespace}/{cluster.lease_name}", now)
    yield from call_findings(lease, pods or [], rules, now)
    if webhook != {}:
        there = webhook is not None
        trials = [cluster.trial(pod) if there else Probe(None, None) for pod in (broken_pod(), exclusive_pod())]
        yield from webhook_findings(webhook, cluster.authority() if there else None, *trials)
    if nodes is not None:
        yield from _of_objects(nodes, pods, sick or [], rules, now)


def _of_objects(
    nodes: list[Json], pods: list[Json] | None, sick: list[Json], rules: Any, now: datetime
) -> Iterator[Finding]:
    from aliquot import dialects
    from aliquot.cli.nodechecks import node_findings
    from aliquot.cli.podchecks import pod_findings, waiting_findings
    from aliquot.model.refusal import Invalid
    from aliquot.services.overview import look

    taken_out: dict[str, frozenset[int]] = {}
    for obj in sick:
        told = dialects.parse_unhealthy(obj)
        if isinstance(told, Invalid):
            name = str(part(obj, "metadata", "name"))
            what = f"is not heeded: {told.sentence()}"
            yield Finding("cards", Level.FINDING, (name,), what, f"kubectl edit configmap {name} -n kube-system")
        elif told is not None:
            taken_out[told[0]] = told[1]
    yield from node_findings(nodes, taken_out, rules)
    if pods is None:
        return
    seen = look([*nodes, *pods, *sick], rules)
    known = {name: node for name in seen.snapshot.nodes if (node := seen.snapshot.board.node(name)) is not None}
    yield from pod_findings(pods, known, rules, now)
    yield from waiting_findings(seen)


# --- telling -------------------------------------------------------------------------------------------------------


def _lines(findings: list[Finding]) -> Iterator[str]:
    marks = {Level.OK: "ok     ", Level.NOTE: "note   ", Level.FINDING: "FINDING", Level.UNKNOWN: "FINDING"}
    for each in findings:
        cannot = "cannot look: " if each.level is Level.UNKNOWN else ""
        about = f"{each.whom}: " if each.about else ""
        yield f"{marks[each.level]}  {each.check.ljust(_WIDEST)}  {about}{cannot}{each.what}"
        if each.advice and each.level is not Level.OK:
            yield f"{' ' * 9}{' ' * _WIDEST}  -> {each.advice}"


def _entry(finding: Finding) -> Json:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "about": list(finding.about),
        "what": finding.what,
        "fix": finding.advice,
    }
