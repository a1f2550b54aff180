"""`aliquot install` and `aliquot upgrade`: install on a cluster without Helm, and verify."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import click

import aliquot
from aliquot.cli.errors import InputError
from aliquot.cli.install.options import InstallGiven, check, given_options, install_options, packaged_objects
from aliquot.cli.install.steps import Steps, find_cluster, run
from aliquot.cli.tables import printable
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.text import printable_json
from aliquot.services.doctor.findings import Level

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kube import Kube
    from aliquot.dialects.wire.install.deployment import Options
    from aliquot.dialects.wire.install.record import Record
    from aliquot.services.doctor.findings import Finding
    from aliquot.services.install.clusterobjects import ClusterObjects
    from aliquot.services.install.installer import Installer
    from aliquot.services.install.preflight import Preflight

_POLICIES_SINCE = (1, 30)
_BACKOFF_SINCE = (1, 33)  # kube-scheduler's gate SchedulerPopFromBackoffQ
_CDI_SINCE = (1, 29)  # as dialects/wire/cdi.py has it for one kubelet
_REMOVAL_TIMEOUT = 120.0  # seconds to remove a first installation that failed
_IMAGE_MISSING = (
    "--kube-scheduler-image is missing: give the image of a kube-scheduler of the cluster's version, {version}"
)

_NOT_ROLLED_BACK = (
    "not rolled back: there is no earlier installation to return to, and Pods may use shared cards; run the same "
    "command again to resume, or `aliquot uninstall`"
)
_NEXT = """\
next:
  kubectl label node NODE {label}     # share the cards of a node
  kubectl aliquot                     # show nodes, cards and Pods
  kubectl apply -f - <<EOF            # run a Pod on a part of a card
{pod}
EOF"""


@click.command()
@install_options(fresh=True)
def install(**given: Unpack[InstallGiven]) -> None:
    """Install aliquot on a cluster: scheduler, webhook, agents, and what they need.

    Inspects the cluster, applies everything (server-side), waits until it is ready, and verifies it. If the rollout
    fails, it reports the Pod that is not ready and rolls back. If it is interrupted, run the same command again. The
    Helm chart installs the same objects.

    \b
    aliquot install --nodes gpu-1,gpu-2
    aliquot install --mode gpushare --image REGISTRY/aliquot/aliquot:VERSION
    aliquot install --image-pull-secret mine --runtime-class nvidia
    aliquot install --simulate 4x16GiB --nodes n1     try it on a node without GPUs
    aliquot install --dry-run -o yaml                 print the objects
    """
    _run(given, upgrade=False)


@click.command()
@install_options(fresh=False)
def upgrade(**given: Unpack[InstallGiven]) -> None:
    """Upgrade the installation on a cluster to this program's version.

    Options that are not given keep their values; '' removes one. Upgrades RBAC, then the agents node by node, then the
    scheduler. Running Pods are not affected, and new Pods are still scheduled: an agent announces its replacement, and
    for those seconds no Pod is bound to its node. If the rollout fails, it restores the objects of the old version.

    \b
    aliquot upgrade --dry-run
    aliquot upgrade --image REGISTRY/aliquot/aliquot:VERSION
    """
    _run(given, upgrade=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to apply."""

    record: Record
    objects: list[JsonObject]
    notes: tuple[str, ...]


def _run(given: InstallGiven, *, upgrade: bool) -> None:
    check(given)
    server = find_cluster(given["kubeconfig"], given["kube_context"])
    steps = Steps()
    command = "upgrade" if upgrade else "install"
    resume = f"run `aliquot {command}` with the same options to resume, or `aliquot uninstall` to remove it"

    async def work() -> int:
        from aliquot.adapters.kubernetes.kube import Kube

        async with Kube(server, agent="aliquot-install") as kube:
            return await _work(kube, given, steps, upgrade=upgrade)

    raise click.exceptions.Exit(run(work(), steps, resume=resume))


async def _work(kube: Kube, given: InstallGiven, steps: Steps, *, upgrade: bool) -> int:
    from aliquot.services.install.clusterobjects import ClusterObjects, InstallError
    from aliquot.services.install.installer import Installer
    from aliquot.services.install.rollout import PROGRAMS, Rollout

    objects = ClusterObjects(kube)
    rollout = Rollout(objects, given["namespace"], report=steps.report, now=time.monotonic)
    installer = Installer(objects, rollout, report=steps.report)
    try:
        plan = await _plan(installer, given, steps, upgrade=upgrade)
    except InstallError as error:
        raise InputError(str(error)) from error
    for note in plan.notes:
        steps.report("note", note)
    if given["dry_run"]:
        await _dry_run(installer, plan, given["output"])
        return 0
    until = time.monotonic() + given["timeout"] if given["wait"] else None
    findings: list[Finding] = []
    record = plan.record
    try:
        record = await installer.apply_all(record, plan.objects, nodes=_nodes(given), until=until)
        if until is not None:
            from aliquot.services.doctor.verify import verify

            await rollout.wait(tuple(PROGRAMS), until)
            steps.report("verify", "leader, webhook, nodes")
            findings = await verify(kube, record.options.namespace, until)
            await installer.settle(record)
    except InstallError as error:
        steps.end()
        click.echo(f"aliquot: {error}", err=True)
        if given["rollback"]:
            await _roll_back(kube, installer, record, steps, upgrade=upgrade)
        else:
            click.echo("aliquot: not rolled back (--no-rollback); run the same command again to resume", err=True)
        return 1
    steps.end()
    _summary(record, findings, given)
    return 0


# --- planning --------------------------------------------------------------------------------------------------------


async def _plan(installer: Installer, given: InstallGiven, steps: Steps, *, upgrade: bool) -> _Plan:
    from aliquot.dialects.wire.install.deployment import tailor_objects
    from aliquot.dialects.wire.install.record import new_record, rollback_target, with_objects_of
    from aliquot.services.install.preflight import inspect

    objects, namespace = installer.objects, installer.rollout.namespace
    steps.report("inspect", "the cluster")
    found = await inspect(objects, installer.rollout)
    steps.report("inspect", f"Kubernetes {found.version}")
    _check(found, given)
    known = found.record
    if upgrade and known is None:
        raise InputError(f"--namespace: nothing is installed in {namespace}: use `aliquot install`")
    options = await _options(objects, given, found)
    if not upgrade and known is not None and known.settled and (known.version, known.options) != (_version(), options):
        what = f"{known.version} is installed in {namespace}, with other options or in another version"
        raise InputError(f"{what}: use `aliquot upgrade`; options that are not given keep their values")
    await installer.missing_labels(_nodes(given), options.mode)  # reports a misspelled node before anything is created
    wanted = tailor_objects(packaged_objects(), options, _version())
    before = None if known is None else rollback_target(known)
    record = new_record(_version(), options, wanted, before=before, labelled=known.labelled if known else {})
    if known is not None and not known.settled:
        record = with_objects_of(record, known)
    return _Plan(record, wanted, _notes(found, known))


def _nodes(given: InstallGiven) -> list[str]:
    return [name for name in given["nodes"].split(",") if name]


def _check(found: Preflight, given: InstallGiven) -> None:
    from aliquot.dialects.wire.schedulerconfig import OLDEST_NODES, parse_version

    version = parse_version(found.version)
    if not isinstance(version, tuple) or version < OLDEST_NODES:
        raise InputError(
            f"Kubernetes {found.version}: 1.28 or later is required; for a manual setup see docs/scheduler.md"
        )
    if found.missing_rights:
        raise InputError(
            f"your account may not {', '.join(found.missing_rights)}: use an account with the role cluster-admin"
        )
    if found.foreign:
        raise InputError(
            f"aliquot is already installed: {'; '.join(found.foreign)}. If Helm installed it: `helm upgrade`; if it is "
            "in another namespace: `aliquot upgrade --namespace NAMESPACE`, or `aliquot uninstall` first"
        )
    if found.competitors and not given["beside_others"]:
        raise InputError(
            f"another product allocates the same cards: {'; '.join(found.competitors)}. To take over its running Pods "
            "see docs/migration.md, to end a drop-in docs/dropin.md; --beside-others installs anyway"
        )
    if found.others and not given["beside_others"]:
        from aliquot.services.install.otherplugins import refusal

        raise InputError(refusal(found.others))


async def _options(objects: ClusterObjects, given: InstallGiven, found: Preflight) -> Options:
    from aliquot.dialects.wire.install.deployment import Options
    from aliquot.dialects.wire.schedulerconfig import parse_version
    from aliquot.services.install.installer import options_with
    from aliquot.services.install.preflight import has_prometheus_operator, kube_scheduler_image

    known = found.record
    wanted = given_options(given)
    wanted["monitoring"] = await has_prometheus_operator(objects)
    version = parse_version(found.version)
    wanted["policies"] = isinstance(version, tuple) and version >= _POLICIES_SINCE
    wanted["env_by_annotation"] = isinstance(version, tuple) and version < _CDI_SINCE
    wanted["pops_from_backoff"] = isinstance(version, tuple) and version >= _BACKOFF_SINCE
    if known is not None:
        return options_with(known.options, {**wanted, "image": given["image"] or _retagged(known)})
    image = given["kube_scheduler_image"] or await kube_scheduler_image(objects)
    if image is None:
        raise InputError(_IMAGE_MISSING.format(version=found.version))
    fresh = Options(image=f"aliquot/aliquot:{_version()}", kube_scheduler_image=image, namespace=given["namespace"])
    return options_with(fresh, {**wanted, "kube_scheduler_image": image})


def _retagged(known: Record) -> str:
    """The image of this version, from the registry of the installed one."""
    name, colon, tag = known.options.image.rpartition(":")
    if "@" in known.options.image and known.version != _version():
        raise InputError(
            f"--image is missing: {known.options.image} names one image by its digest, that of {known.version};"
            f" give that of {_version()}, or a tag"
        )
    if tag == known.version and colon:
        return f"{name}:{_version()}"
    if known.version == _version():
        return known.options.image
    raise InputError(f"--image is missing: the tag of {known.options.image} is not its version, {known.version}")


def _notes(found: Preflight, known: Record | None) -> tuple[str, ...]:
    from aliquot.dialects.wire.otherplugins import hand_out
    from aliquot.services.install.otherplugins import taken_by_other

    notes = [f"beside {competitor}" for competitor in found.competitors]
    notes += [
        taken_by_other(node.name) if node.contested else f"{node.name} offers nothing: {hand_out(node.others)}"
        for node in found.others
    ]
    if known is not None and not known.settled:
        how = "applied with --no-wait and is not ready yet" if known.applied else "not finished"
        notes.append(f"an installation of {known.version} was {how}: resuming")
    elif known is not None and _number(known.version) > _number(_version()):
        notes.append(f"downgrading from {known.version} to {_version()}")
    return tuple(notes)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3])


def _version() -> str:
    return aliquot.__version__


# --- output ----------------------------------------------------------------------------------------------------------


async def _dry_run(installer: Installer, plan: _Plan, output: str) -> None:
    import msgspec

    from aliquot.dialects.wire.install.deployment import identity

    if output == "yaml":
        import yaml

        click.echo(yaml.safe_dump_all(plan.objects, sort_keys=False), nl=False)
        return
    changes = {}
    for obj in plan.objects:
        part = await installer.own_part(obj) if obj["kind"] == "Namespace" else obj
        changes[str(identity(obj))] = await installer.objects.difference(part)
    if output == "json":
        click.echo(printable_json(msgspec.json.format(msgspec.json.encode(changes), indent=2).decode()))
        return
    for name, change in changes.items():
        click.echo(f"{change.ljust(10)} {name}")
    click.echo("nothing was changed (--dry-run)", err=True)


async def _roll_back(kube: Kube, installer: Installer, record: Record, steps: Steps, *, upgrade: bool) -> None:
    from aliquot.cli.install.uninstall import default_objects
    from aliquot.services.install.clusterobjects import InstallError
    from aliquot.services.install.uninstaller import Uninstaller

    namespace = record.options.namespace
    try:
        before = await installer.roll_back(record)
        if before is not None:
            click.echo(f"aliquot: rolled back to {before.version}; see `kubectl get pods -n {namespace}`", err=True)
            return
        until = time.monotonic() + _REMOVAL_TIMEOUT
        uninstaller = Uninstaller(kube, report=steps.report, now=time.monotonic, until=until)
        if upgrade or await uninstaller.holders():  # an earlier one was never seen ready, but may be
            click.echo(f"aliquot: {_NOT_ROLLED_BACK}", err=True)
            return
        steps.report("roll back", "removing what was installed")
        image = record.options.image
        settings = await uninstaller.sweep_settings(namespace, None, image, image)
        cleaned = await uninstaller.clean(namespace, settings, record.labelled, keep_running=False)
        for problem in cleaned.problems:
            click.echo(f"aliquot: {problem}", err=True)
        objects = default_objects(namespace)
        await uninstaller.delete_objects(record, namespace, objects, sweep_again=cleaned.files_left)
    except InstallError as error:
        raise InputError(f"rolling back: {error}; run `aliquot uninstall` to finish", code=1) from error
    left = "what is named above is left: run `aliquot uninstall` to finish" if cleaned.problems else "nothing is left"
    click.echo(f"aliquot: rolled back: {left}", err=True)


def _summary(record: Record, findings: list[Finding], given: InstallGiven) -> None:
    wrong = [finding for finding in findings if finding.level in (Level.FINDING, Level.UNKNOWN)]
    if given["output"] == "json":
        import msgspec

        summary = {
            "version": record.version,
            "namespace": record.options.namespace,
            "verified": given["wait"],
            "findings": [{"about": list(found.about), "what": found.what, "fix": found.advice} for found in wrong],
        }
        click.echo(printable_json(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode()))
        return
    from aliquot.cli.cluster.doctor import lines_of
    from aliquot.dialects.wire.install.deployment import example_pod, label_arguments

    for line in lines_of(findings):
        click.echo(printable(line))
    state = "is applied; check it with `aliquot doctor`"
    if given["wait"]:
        result = f"{len(wrong)} finding{'s' * (len(wrong) != 1)} above" if wrong else "verified"
        state = f"is installed: {result}"
    click.echo(f"\naliquot {record.version} {state} (namespace {record.options.namespace}, mode {record.options.mode})")
    click.echo(_NEXT.format(label=label_arguments(record.options.mode), pod=example_pod(record.options.mode)))
