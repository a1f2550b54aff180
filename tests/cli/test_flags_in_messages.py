"""Flags that our messages name exist: an error that recommends a missing one sends people in circles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aliquot.cli.cluster.kubectl_aliquot import aliquot as kubectl_aliquot
from aliquot.cli.cluster.kubectl_inspect import inspect
from aliquot.cli.main import COMMANDS, cli
from aliquot.cli.run.command import OPTIONS as RUN_OPTIONS

SOURCE = Path(__file__).parents[2] / "src" / "aliquot"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
COMMAND = re.compile(r"`aliquot ([a-z-]+)([^`]*)`")


def flags_of(command: click.Command) -> set[str]:
    own = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(flags_of, inner))


def all_flags() -> dict[str, set[str]]:
    """By command."""
    context = click.Context(cli)
    found = {name: flags_of(command) for name, _, _ in COMMANDS if (command := cli.get_command(context, name))}
    return {**found, "run": {flag for flag, _, _ in RUN_OPTIONS}, "": flags_of(cli)}


BY_COMMAND = all_flags()
OURS = set().union(*BY_COMMAND.values(), flags_of(kubectl_aliquot), flags_of(inspect))
# Flags of other programs that we call or recommend: kubectl, kube-scheduler, helm, nvidia-smi, systemctl.
OTHERS = {
    *("--address", "--all-containers", "--field-selector", "--list", "--minify", "--overwrite", "--raw"),
    *("--policy-config-file", "--leader-elect-resource-name", "--feature-gates"),
    *("--reuse-values", "--set", "--install", "--previous"),
    "--gpu-reset",
    *("--no-pager", "--quiet", "--now"),
}


def messages(path: Path) -> Iterator[str]:
    """The texts of a module that are no documentation."""
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


CALLS = {SOURCE / "adapters" / "gpu" / "player.py"}  # its flags are those of the player of simulated cards
MESSAGES = {
    path.relative_to(SOURCE): [text for text in messages(path) if "--" in text]
    for path in sorted(set(SOURCE.rglob("*.py")) - CALLS)
}


def test_messages_name_flags_that_exist() -> None:
    unknown = {
        (str(path), flag)
        for path, texts in MESSAGES.items()
        for text in texts
        for flag in FLAG.findall(text)
        if flag not in OURS | OTHERS
    }
    assert unknown == set()


def test_commands_in_messages_have_the_flags_that_are_named_with_them() -> None:
    named = [found for texts in MESSAGES.values() for text in texts for found in COMMAND.findall(text)]
    assert named
    for command, rest in named:
        assert set(FLAG.findall(rest)) <= BY_COMMAND[command], f"aliquot {command}{rest}"


@pytest.mark.parametrize("command", ["run", "explain", "scheduler"])
def test_rules_of_a_dialect_name_flags_of_every_command_that_reads_manifests(command: str) -> None:
    """Each of them prints what a manifest violates."""
    modules = [
        *(Path("dialects", f"{name}.py") for name in ("qgpu", "t9k", "hami", "kai", "pods", "lookalikes")),
        Path("dialects", "gpushare", "pods.py"),
    ]
    named = {flag for module in modules for text in MESSAGES[module] for flag in FLAG.findall(text)}
    assert "--rules" in named
    assert named <= BY_COMMAND[command]
