"""Is our scheduler there, is it asked, and is its webhook trusted: objects in, findings out."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from msgspec import UNSET, UnsetType

from aliquot import dialects
from aliquot.dialects import gpushare, hami, kai, native, qgpu, t9k
from aliquot.dialects.wire.leases import LeaseObject
from aliquot.dialects.wire.schedulerconfig import DEFAULT_SCHEDULER_NAME, SCHEDULER_NAME, T9K_SCHEDULER_NAME
from aliquot.dialects.wire.webhook.configuration import CONFIGURATION, WEBHOOK, WebhookConfigurationObject
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid
from aliquot.model.status.machine import CallStatus
from aliquot.services.doctor.findings import Finding, Level, found, moment, ok
from aliquot.services.explain.snapshot import ClusterPod, Snapshot
from aliquot.wording.amounts import duration
from aliquot.wording.reasons import codes

PATIENCE = timedelta(seconds=30)
_SLACK = timedelta(seconds=15)  # clocks differ
_ALL = frozenset(dialects.DIALECTS)
_NEW_CONFIG = "`aliquot manifests scheduler-config` prints the configuration and says where it goes"


@dataclass(frozen=True, slots=True)
class Probe:
    """What the API server said to a Pod that was not meant to stay: the Pod as it would be, or the refusal."""

    pod: object | None  # JSON, which the dialects read
    refusal: str | None


@dataclass(frozen=True, slots=True)
class Control:
    """What was read of the scheduler's Lease and webhook.

    An object that is not there is None; one that may not be read is not judged: it is UNSET.
    """

    lease_name: str  # namespace/name
    lease: LeaseObject | Invalid | UnsetType | None
    webhook: WebhookConfigurationObject | Invalid | UnsetType | None
    trials: tuple[Probe, Probe] = (Probe(None, None), Probe(None, None))  # of `trial_pods`, where there is a webhook
    authority: str | None = None  # the certificate that signs the webhook's, in base64, as a Secret has it


def control_findings(control: Control, snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Whether a replica leads, kube-scheduler asks it (unless it is too early to know), and the webhook works."""
    if control.lease is not UNSET:
        yield from lease_findings(control.lease, control.lease_name, now)
    lease = control.lease if isinstance(control.lease, LeaseObject) else None
    yield from call_findings(lease, snapshot, now)
    if control.webhook is not UNSET:
        served = snapshot.cluster.rules.served
        yield from webhook_findings(control.webhook, control.authority, *control.trials, served=served)


def lease_findings(lease: LeaseObject | Invalid | None, name: str, now: datetime) -> Iterator[Finding]:
    """Whether a replica leads."""
    if lease is None:
        what = "does not exist: no scheduler of Aliquot has ever led here, or it may not write Leases"
        fix = "install it, with Helm or from install.yaml: docs/install.md; where it runs, its log says what it lacks"
        fix += " (with the vendor's own roles it may not write Leases, and always leads: docs/dropin.md)"
        yield found("scheduler", f"Lease {name}", what, fix)
        return
    if isinstance(lease, Invalid):
        what = f"cannot be read, so it is not known whether a replica leads: {lease.sentence()}"
        yield found("scheduler", f"Lease {name}", what, "delete it: the scheduler that runs makes a new one")
        return
    holder, seconds = lease.spec.holder_identity, lease.spec.lease_duration_seconds
    renewed = moment(lease.spec.renew_time)
    lasts = timedelta(seconds=seconds if seconds is not None and 0 < seconds < 86_400 else 15)
    if not holder:
        what = "no replica holds it: the scheduler has ended and no other has taken over"
        yield found("scheduler", f"Lease {name}", what, "start `aliquot scheduler` again")
    elif renewed is None or now - renewed > lasts + _SLACK:
        when = "never" if renewed is None else f"{duration(int((now - renewed).total_seconds()))} ago"
        what = f"{holder} holds it, but renewed it last {when}: it hangs, died, or does not reach the API server"
        yield found("scheduler", f"Lease {name}", what, f"look at the log of {holder}, and restart it")
    else:
        address = (lease.metadata.annotations or {}).get(native.ADDRESS) or "an unknown address"
        yield ok("scheduler", f"{holder} leads, at {address}")


def call_findings(lease: LeaseObject | None, snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """Whether kube-scheduler asks us at all: by the calls that were counted, and by what became of Pods."""
    counted = (lease.metadata.annotations or {}).get(native.CALLS) if lease is not None else None
    calls = _calls(counted)
    if calls is None:
        what = f"annotation {native.CALLS} cannot be read, so it is not known whether the extender is called"
        yield found("extender", "the scheduler's Lease", what, "run the same release of aliquot everywhere")
        calls = {}
    last = moment(calls.get("filter", CallStatus()).last)
    unasked = past_us = answered = False
    for pod in snapshot.pods:
        if pod.read.finished or not isinstance(claim := snapshot.cluster.read(pod.read), Claim):
            continue
        if pod.read.spec.node_name:
            if dialects.parse_grant(pod.read, claim, None) is None and not claim.whole_node:
                past_us = True
                what = f"is bound, but has no annotation {native.GRANT}: placed without Aliquot, it has no card"
                fix = f"kubectl delete pod POD once kube-scheduler asks Aliquot: {_NEW_CONFIG}"
                yield found("extender", pod.key, what, fix)
        elif (since := moment(pod.created)) is not None and now - since > PATIENCE:
            if last is not None and last >= since:
                continue
            if codes(_last_message(pod) or ""):
                answered = True
                continue
            unasked = True
            yield _unasked(pod)
    if not unasked and not past_us and lease is not None and counted is not None:
        yield _asked(calls, answered=answered)


def _asked(calls: Mapping[str, CallStatus], *, answered: bool) -> Finding:
    """Only the leader publishes its calls. A kube-scheduler beside another replica asks that one, and the leader sees
    only the binds."""
    count, bound = calls.get("filter", CallStatus()).count, calls.get("bind", CallStatus()).count
    if count:
        times = f"{count:,} time{'s' * (count != 1)}"
        return ok("extender", f"was asked {times}, last at {calls['filter'].last}; binds: {bound:,}")
    if bound or answered:
        return ok("extender", f"is called, through a replica that does not lead; binds: {bound:,}")
    return Finding("extender", Level.NOTE, (), "was not called yet; no GPU Pod has needed it")


def _calls(annotation: str | None) -> Mapping[str, CallStatus] | None:
    """What the leader counted; nothing where it has not published it yet, None where it cannot be read."""
    if annotation is None:
        return {}
    try:
        return msgspec.json.decode(annotation, type=dict[str, CallStatus])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _unasked(pod: ClusterPod) -> Finding:
    """Why a Pod waits that kube-scheduler never asked us about: there are three causes."""
    name = pod.read.spec.scheduler_name or DEFAULT_SCHEDULER_NAME
    message = _last_message(pod)
    if pod.read.spec.scheduling_gates:
        what = "waits for its scheduling gates, which another controller must remove"
        return Finding("extender", Level.NOTE, (pod.key,), what)
    if message is None:
        what = f"waits, and no scheduler has looked at it: none serves its schedulerName {name}"
        if name == DEFAULT_SCHEDULER_NAME:
            fix = "is kube-scheduler running? kubectl get pods -n kube-system; its log shows why it does not"
        else:
            fix = f"`aliquot manifests scheduler-config --second` serves {SCHEDULER_NAME} and {T9K_SCHEDULER_NAME};"
            fix += " or change spec.schedulerName"
        return found("extender", pod.key, what, fix)
    short = sorted(resource for resource in _RESOURCES if f"Insufficient {resource}" in message)
    if short:
        what = f"waits: by kube-scheduler's count no node has enough {' and '.join(short)} left: Aliquot is not asked"
        fix = "see what nodes advertise: kubectl get nodes -o yaml; the checks of nodes below show what they lack"
        return found("extender", pod.key, what, fix)
    what = "waits, and kube-scheduler has tried it without asking Aliquot"
    quoted = f" (it says: {message[:200]})" if message else ""
    return found("extender", pod.key, what + quoted, f"configure kube-scheduler to call Aliquot: {_NEW_CONFIG}")


def _last_message(pod: ClusterPod) -> str | None:
    """kube-scheduler's message on a Pod that waits; None where no scheduler has tried it."""
    conditions = (pod.read.status.conditions if pod.read.status else None) or ()
    scheduled = next((condition for condition in conditions if condition.type == "PodScheduled"), None)
    return None if scheduled is None else scheduled.message or ""


_RESOURCES = (*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, *hami.RESOURCES, *kai.RESOURCES)


# --- the webhook -----------------------------------------------------------------------------------------------------


def trial_pods(served: frozenset[str]) -> tuple[JsonObject, JsonObject]:
    """The Pods to create with a dry run."""
    return broken_pod(served), exclusive_pod()


def broken_pod(served: frozenset[str] = _ALL) -> JsonObject:
    """A Pod that breaks a rule of a dialect that is served, under every set of rules: compute without memory, more than
    a card, memory that does not divide over its cards."""
    name = "aliquot-doctor-breaks-a-rule"
    if qgpu.DIALECT in served:
        return _probe(name, {qgpu.CORE: "10"})
    if t9k.DIALECT in served:
        return _probe(name, {t9k.PERCENT: "101"})
    if gpushare.DIALECT in served:
        return _probe(name, {gpushare.MEMORY: "3", gpushare.COUNT: "2"})
    if hami.DIALECT in served:
        return _probe(name, {hami.CARDS: "1", hami.PERCENTAGE: "101"})
    pod = _probe(name, {})
    pod["metadata"]["annotations"] = {kai.FRACTION: "1"}
    return pod


def exclusive_pod() -> JsonObject:
    """A Pod that is to get a toleration."""
    return _probe("aliquot-doctor-exclusive", {t9k.CARDS: "1"})


def _probe(name: str, limits: dict[str, str]) -> JsonObject:
    """Allowed by the strictest Pod security standard: what refuses it shall be us."""
    careful = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "aliquot-doctor", "resources": {"limits": limits}, "securityContext": careful}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def webhook_findings(
    configuration: WebhookConfigurationObject | Invalid | None,
    ca: str | None,
    broken: Probe,
    exclusive: Probe,
    *,
    served: frozenset[str] = _ALL,
) -> Iterator[Finding]:
    """Whether the webhook is there, trusted, and does its work. `ca` is in base64, as a Secret has it."""
    name = f"MutatingWebhookConfiguration {CONFIGURATION}"
    if configuration is None:
        what = "does not exist: mistakes show only after `kubectl apply`, and T9k Pods get no toleration"
        what += ", and Pods of KAI's get no card" * (kai.DIALECT in served)
        fix = (
            "if it is wanted: `aliquot scheduler --webhook-port 9443`. A scheduler that has that port creates it "
            "within 20 seconds; if not, its log says what it lacks, and `helm upgrade`, or `kubectl apply` of "
            "install.yaml, creates both"
        )
        level = Level.FINDING if kai.DIALECT in served else Level.NOTE
        yield Finding("webhook", level, (name,), what, fix)
        return
    hooks = () if isinstance(configuration, Invalid) else configuration.webhooks or ()
    bundles = [hook.client_config.ca_bundle for hook in hooks]
    if isinstance(configuration, Invalid):
        yield found("webhook", name, f"cannot be read: {configuration.sentence()}", _ANEW)
    elif not bundles or not all(bundles):
        what = "has no caBundle: the API server trusts no certificate there"
        yield found("webhook", name, what, _ANEW)
    elif ca is not None and not all(_contains(bundle or "", ca) for bundle in bundles):
        what = "its caBundle is not of the authority that signed the webhook's certificate: calls to it fail"
        yield found("webhook", name, what, _ANEW)
    yield from _refuses(broken, name, served)
    if t9k.DIALECT in served:
        yield from _tolerates(exclusive, name)


def _contains(bundle: str, ca: str) -> bool:
    """Whether all the authorities are in the bundle: there are two while one follows the other."""
    try:
        held, wanted = base64.b64decode(bundle), base64.b64decode(ca)
    except ValueError:
        return False
    certificates = [word.strip() for word in wanted.split(_END) if word.strip()]
    return bool(certificates) and all(certificate in held for certificate in certificates)


_END = b"-----END CERTIFICATE-----"


def _refuses(probe: Probe, name: str, served: frozenset[str]) -> Iterator[Finding]:
    refusal = probe.refusal or ""
    if _names_broken_rule(refusal, served):
        yield ok("webhook", "refuses a Pod that breaks a rule, and says which")
    elif probe.pod is not None:
        what = "let a Pod in that breaks a rule: the API server does not reach the webhook, or does not trust it"
        fix = f'the API server\'s log says: "failed calling webhook {WEBHOOK}"; is its Service or URL right?'
        fix += f" If the webhook was switched off: kubectl delete mutatingwebhookconfiguration {CONFIGURATION}"
        yield found("webhook", name, what, fix)
    elif "failed calling webhook" in refusal:
        yield found("webhook", name, f"cannot be called, and keeps Pods out: {refusal[:300]}", _CALL_FAILED)
    else:
        yield Finding("webhook", Level.UNKNOWN, (name,), f"a trial Pod could not be made: {refusal[:300]}", _MAY_CREATE)


def _names_broken_rule(refusal: str, served: frozenset[str]) -> bool:
    """Whether the refusal names the rule that the trial Pod breaks; kubectl puts field and rule in words of its own."""
    broken = dialects.parse_pod(broken_pod(served), dialects.Rules(served=served))
    return isinstance(broken, tuple) and all(
        invalid.field in refusal and invalid.allowed in refusal for invalid in broken
    )


def _tolerates(probe: Probe, name: str) -> Iterator[Finding]:
    claim = dialects.parse_pod(probe.pod) if probe.pod is not None else None
    if not isinstance(claim, Claim):
        return  # the finding of the other trial says why
    if dialects.missing_tolerations(probe.pod, claim):
        what = "a Pod that asks for whole cards comes back without the toleration of xgn nodes"
        yield found("webhook", name, what, "as above: the webhook is not called, or is of an older release")
    else:
        yield ok("webhook", "gives T9k Pods their toleration")


_ANEW = f"kubectl delete mutatingwebhookconfiguration {CONFIGURATION}; the scheduler creates it again"
_CALL_FAILED = "is the scheduler running, and is the Service or URL of the configuration its own?"
_MAY_CREATE = "ask for a role that may create Pods, or name a --namespace where you may"
