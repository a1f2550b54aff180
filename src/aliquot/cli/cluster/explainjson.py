"""What `aliquot explain -o json` prints."""

from __future__ import annotations

from collections.abc import Iterable

import click
import msgspec

from aliquot.cli.tables import printable
from aliquot.model.grant import Grant, Share
from aliquot.model.status.printed import (
    ExplainedClaim,
    ExplainedPod,
    ExplainedPreemption,
    ExplainedRefusal,
    ExplainedShare,
    ExplainedVictim,
    SharesByContainer,
)
from aliquot.model.text import printable_json
from aliquot.services.explain.claims import PodClaim
from aliquot.services.explain.verdicts import Preemption, Verdict
from aliquot.wording.amounts import in_units
from aliquot.wording.refusals import as_data


def write_json(verdicts: Iterable[Verdict]) -> bool:
    """A list, one entry per Pod. Whether all fit."""
    fits, before = True, "["
    encoded: tuple[object, msgspec.Raw] = (None, msgspec.Raw(b"[]"))
    for verdict in verdicts:
        if encoded[0] is not verdict.refusals:  # replicas that do not fit share theirs
            encoded = (verdict.refusals, msgspec.Raw(msgspec.json.encode(_refusals(verdict))))
        entry = msgspec.json.format(msgspec.json.encode(_entry(verdict, encoded[1])), indent=2)
        click.echo(f"{before}\n  " + printable_json(entry.decode()).replace("\n", "\n  "), nl=False)
        if verdict.remark:
            click.echo(f"note: {printable(f'{verdict.pod}: {verdict.remark}')}", err=True)
        fits, before = fits and verdict.fits is not False, ","
    click.echo("\n]" if before == "," else "[]")
    return fits


def _entry(verdict: Verdict, refusals: msgspec.Raw) -> ExplainedPod:
    return ExplainedPod(
        pod=verdict.pod,
        ours=verdict.ours,
        fits=verdict.fits,
        node=verdict.grant.node if verdict.grant else None,
        containers=_containers(verdict.grant) if verdict.grant else {},
        error="; ".join(broken.sentence() for broken in verdict.broken) or None,
        scheduling_gates=list(verdict.gates),
        preemption=_preemption(verdict.preemption) if verdict.preemption else None,
        claims=[_claim(claim) for claim in verdict.claims],
        refusals=refusals,
    )


def _claim(claim: PodClaim) -> ExplainedClaim:
    return ExplainedClaim(
        claim=claim.name,
        node=claim.grant.node if claim.grant else None,
        app_class=claim.app_class,
        requests=_containers(claim.grant) if claim.grant else {},
        pods=list(claim.users),
        error=claim.why or None,
    )


def _preemption(found: Preemption) -> ExplainedPreemption:
    return ExplainedPreemption(
        node=found.grant.node,
        containers=_containers(found.grant),
        allowed=found.allowed,
        victims=[ExplainedVictim(victim.key, victim.priority, victim.app_class) for victim in found.victims],
    )


def _containers(grant: Grant) -> SharesByContainer:
    return {container.name: [_share(share) for share in container.shares] for container in grant.containers}


def _share(share: Share) -> ExplainedShare:
    core = 1000 if share.exclusive else share.core_milli
    return ExplainedShare(
        card=share.card,
        memory_gib=in_units(share.memory_mib, 1024),
        core=None if core is None else in_units(core, 10),
        core_greedy=None if share.greedy_milli is None else in_units(share.greedy_milli, 10),
        whole=share.exclusive,
    )


def _refusals(verdict: Verdict) -> list[ExplainedRefusal]:
    found = (as_data(refusal, verdict.claim) for refusal in verdict.refusals)
    return [
        ExplainedRefusal(entry["node"], entry["card"], entry["code"], entry["wanted"], entry["had"], entry["never"])
        for entry in found
    ]
