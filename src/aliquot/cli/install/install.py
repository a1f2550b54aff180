"""`aliquot install` and `aliquot upgrade`: a cluster from nothing to the first shared Pod, without Helm."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import aliquot
from aliquot.cli.errors import InputError
from aliquot.cli.install.options import asked, check, rendered, shared
from aliquot.cli.install.steps import Steps, find, run
from aliquot.cli.tables import printable
from aliquot.services.doctor.findings import Level

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kube import Kube
    from aliquot.dialects.wire.deployment import Options, Record
    from aliquot.services.doctor.findings import Finding
    from aliquot.services.install.installer import Found, Installer

_OLDEST = (1, 28)
_POLICIES_SINCE = (1, 30)
_AWAY = 120.0  # seconds to take a first installation away again that did not come up
_FIND_IMAGE = (
    "--kube-scheduler-image is missing: name the image of a kube-scheduler of the cluster's version, {version}"
)

_LEFT = (
    "left as it is: nothing is known that it could go back to, and Pods may be on its cards; the same command goes on, "
    "`aliquot uninstall` takes it all away"
)
_NEXT = """\
next:
  kubectl label node NODE {label}     # a node whose cards are to be shared, where it has no label yet
  kubectl aliquot                     # nodes, cards and Pods
  kubectl apply -f - <<EOF            # the first shared Pod
{pod}
EOF"""


@click.command()
@shared(fresh=True)
def install(**given: Any) -> None:
    """Put aliquot on a cluster: scheduler, webhook, agents, and what they need.

    What is there is looked at first, then everything is applied (server-side), awaited and verified.
    Where it does not come up, it says which Pod is not ready and why, and takes everything away again. Killed at any
    point, the same command goes on. For clusters with Helm there is a chart: the same objects.

    \b
    aliquot install --nodes gpu-1,gpu-2
    aliquot install --mode gpushare --image REGISTRY/aliquot/aliquot:VERSION
    aliquot install --image-pull-secret mine --runtime-class nvidia
    aliquot install --simulate 4x16GiB --nodes n1     try it on a node without cards
    aliquot install --dry-run -o yaml                 the objects
    """
    _go(given, upgrade=False)


@click.command()
@shared(fresh=False)
def upgrade(**given: Any) -> None:
    """Bring an installation on a cluster to this program's version.

    Options that are not given stay as they are; one that is given as '' is taken off. RBAC first, then the agents, node
    by node, then the scheduler. Pods run on, and Pods that come find a node: an agent that is about to be replaced says
    so, and no Pod is sent there for those seconds. Where the new version does not come up, the objects of the old one
    are put back.
    """
    _go(given, upgrade=True)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done."""

    record: Record
    objects: list[dict[str, Any]]
    notes: tuple[str, ...]


def _go(given: dict[str, Any], *, upgrade: bool) -> None:
    check(given)
    server = find(given["kubeconfig"], given["kube_context"])
    steps = Steps()
    word = "upgrade" if upgrade else "install"
    goes_on = f"`aliquot {word}` with the same options goes on, `aliquot uninstall` takes it all away"

    async def work() -> int:
        from aliquot.adapters.kubernetes.kube import Kube

        async with Kube(server, agent="aliquot-install") as kube:
            return await _work(kube, given, steps, upgrade=upgrade)

    raise click.exceptions.Exit(run(work(), steps, goes_on=goes_on))


async def _work(kube: Kube, given: dict[str, Any], steps: Steps, *, upgrade: bool) -> int:
    from aliquot.services.install.installer import Installer, InstallError

    installer = Installer(kube, say=steps.say, now=time.monotonic)
    try:
        plan = await _planned(installer, given, steps, upgrade=upgrade)
    except InstallError as error:
        raise InputError(str(error)) from error
    for note in plan.notes:
        steps.say("note", note)
    if given["dry_run"]:
        await _dry_run(installer, plan, given["output"])
        return 0
    until = time.monotonic() + given["timeout"] if given["wait"] else None
    findings: list[Finding] = []
    record = plan.record
    try:
        record = await installer.put(record, plan.objects, nodes=_nodes(given), until=until)
        if until is not None:
            from aliquot.cli.install.verify import verify

            await installer.await_(record.options.namespace, ("aliquot-agent", "aliquot-scheduler"), until)
            steps.say("verify", "leader, webhook, nodes")
            findings = await verify(kube, record.options.namespace, until)
            await installer.settle(record)
    except InstallError as error:
        steps.end()
        click.echo(f"aliquot: {error}", err=True)
        if given["rollback"]:
            await _roll_back(kube, installer, record, steps, upgrade=upgrade)
        else:
            click.echo("aliquot: left as it is, for --no-rollback was given; the same command goes on", err=True)
        return 1
    steps.end()
    _summary(record, findings, given)
    return 0


# --- before anything is done -----------------------------------------------------------------------------------------


async def _planned(installer: Installer, given: dict[str, Any], steps: Steps, *, upgrade: bool) -> _Plan:
    from aliquot.dialects.wire import deployment as made

    namespace = given["namespace"]
    steps.say("look", "at the cluster")
    found = await installer.look(namespace)
    steps.say("look", f"Kubernetes {found.version}")
    _check(found, given)
    known = found.record
    if upgrade and known is None:
        raise InputError(f"--namespace: nothing is installed in {namespace}: `aliquot install` installs it")
    options = await _options(installer, given, found)
    if not upgrade and known is not None and known.settled and (known.version, known.options) != (_version(), options):
        what = f"{known.version} is installed in {namespace}, by other options or of another version"
        raise InputError(f"{what}: `aliquot upgrade` changes it; options that are not given stay as they are")
    await installer.to_label(_nodes(given), options.mode)  # one that is misspelled is told before anything is made
    objects = made.tailored(rendered(), options, _version())
    before = None if known is None else made.replacing(known)
    record = made.new_record(_version(), options, objects, before=before, labelled=known.labelled if known else {})
    if known is not None and not known.settled:
        record = made.heir(record, known)
    return _Plan(record, objects, _notes(found, known))


def _nodes(given: dict[str, Any]) -> list[str]:
    return [name for name in given["nodes"].split(",") if name]


def _check(found: Found, given: dict[str, Any]) -> None:
    from aliquot.dialects.wire.schedulerconfig import parse_version

    version = parse_version(found.version)
    if not isinstance(version, tuple) or version < _OLDEST:
        raise InputError(f"Kubernetes {found.version}: 1.28 or later is wanted; the parts by hand: docs/scheduler.md")
    if found.refused:
        raise InputError(
            f"your account may not {', '.join(found.refused)}: ask for the role cluster-admin, or use one that has it"
        )
    if found.foreign:
        raise InputError(
            f"aliquot is installed already: {'; '.join(found.foreign)}. By Helm: `helm upgrade`; in another namespace: "
            "`aliquot upgrade --namespace` that one, or `aliquot uninstall` first"
        )
    if found.others and not given["beside_others"]:
        raise InputError(
            f"something else gives the same cards away: {'; '.join(found.others)}. docs/migration.md tells how its "
            "Pods are taken over while they run, docs/dropin.md how a drop-in is ended; --beside-others goes on without"
        )


async def _options(installer: Installer, given: dict[str, Any], found: Found) -> Options:
    from aliquot.dialects.wire.deployment import Options
    from aliquot.dialects.wire.schedulerconfig import parse_version
    from aliquot.services.install.installer import options_with

    known = found.record
    wanted = asked(given)
    wanted["monitoring"] = await installer.monitoring()
    version = parse_version(found.version)
    wanted["policies"] = isinstance(version, tuple) and version >= _POLICIES_SINCE
    if known is not None:
        return options_with(known.options, {**wanted, "image": given["image"] or _retagged(known)})
    image = given["kube_scheduler_image"] or await installer.cluster_scheduler()
    if image is None:
        raise InputError(_FIND_IMAGE.format(version=found.version))
    fresh = Options(image=f"aliquot/aliquot:{_version()}", kube_scheduler_image=image, namespace=given["namespace"])
    return options_with(fresh, {**wanted, "kube_scheduler_image": image})


def _retagged(known: Record) -> str:
    """The image of this version, from where the installed one came."""
    name, found, tag = known.options.image.rpartition(":")
    if tag == known.version and found:
        return f"{name}:{_version()}"
    if known.version == _version():
        return known.options.image
    raise InputError(
        f"--image is missing: {known.options.image} has no tag {known.version} that could become {_version()}"
    )


def _notes(found: Found, known: Record | None) -> tuple[str, ...]:
    notes = [f"beside {other}" for other in found.others]
    if known is not None and not known.settled:
        how = "applied by --no-wait, and does not stand yet" if known.applied else "begun and not finished"
        notes.append(f"an installation of {known.version} was {how}: going on")
    elif known is not None and _number(known.version) > _number(_version()):
        notes.append(f"going back from {known.version} to {_version()}: what it wrote is understood")
    return tuple(notes)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def _version() -> str:
    return aliquot.__version__


# --- telling ---------------------------------------------------------------------------------------------------------


async def _dry_run(installer: Installer, plan: _Plan, output: str) -> None:
    import msgspec

    from aliquot.dialects.wire.deployment import identity

    if output == "yaml":
        import yaml

        click.echo(yaml.safe_dump_all(plan.objects, sort_keys=False), nl=False)
        return
    changes = {str(identity(each)): await installer.difference(each) for each in plan.objects}
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(changes), indent=2).decode())
        return
    for name, change in changes.items():
        click.echo(f"{change.ljust(10)} {name}")
    click.echo("nothing was changed: --dry-run", err=True)


async def _roll_back(kube: Kube, installer: Installer, record: Record, steps: Steps, *, upgrade: bool) -> None:
    from aliquot.cli.install.uninstall import usual
    from aliquot.services.install.installer import InstallError
    from aliquot.services.install.uninstaller import Uninstaller

    try:
        before = await installer.back(record)
        if before is not None:
            click.echo(
                f"aliquot: rolled back to {before.version}; `kubectl get pods -n {before.options.namespace}`", err=True
            )
            return
        namespace = record.options.namespace
        away = Uninstaller(kube, say=steps.say, now=time.monotonic, until=time.monotonic() + _AWAY)
        if upgrade or await away.holders():  # what was there before was never seen to stand, and yet it may
            click.echo(f"aliquot: {_LEFT}", err=True)
            return
        steps.say("roll back", "what was installed is taken away")
        agents = await away.agents(namespace, None, record.options.image, record.options.image)
        await away.programs(namespace)
        swept = await away.sweep(namespace, agents, keep_running=False)
        problems = {name: problem for name, problem in swept.items() if problem}
        for problem in problems.values():
            click.echo(f"aliquot: {problem}", err=True)
        await away.clean_nodes(record.labelled, agents, list(problems))
        await away.rest(record, namespace, usual(namespace))
    except InstallError as error:
        raise InputError(f"rolling back: {error}; `aliquot uninstall` goes on with it", code=1) from error
    click.echo("aliquot: rolled back: nothing of it is left", err=True)


def _summary(record: Record, findings: list[Finding], given: dict[str, Any]) -> None:
    wrong = [finding for finding in findings if finding.level in (Level.FINDING, Level.UNKNOWN)]
    if given["output"] == "json":
        import msgspec

        told = {
            "version": record.version,
            "namespace": record.options.namespace,
            "verified": given["wait"],
            "findings": [{"about": list(each.about), "what": each.what, "fix": each.advice} for each in wrong],
        }
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return
    from aliquot.cli.cluster.doctor import lines_of
    from aliquot.dialects.wire.deployment import example, label

    for line in lines_of(findings):
        click.echo(printable(line))
    waited = "is applied; `aliquot doctor` tells how it stands"
    if given["wait"]:
        found = f"{len(wrong)} finding{'s' * (len(wrong) != 1)} above" if wrong else "it answers"
        waited = f"is installed: {found}"
    click.echo(
        f"\naliquot {record.version} {waited} (namespace {record.options.namespace}, mode {record.options.mode})"
    )
    click.echo(_NEXT.format(label=label(record.options.mode), pod=example(record.options.mode)))
