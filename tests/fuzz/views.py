"""What operators look at: names, reasons and commands of strangers are shown, and never control the terminal."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
from click.testing import CliRunner
from hypothesis import strategies as st

from aliquot.cli.cluster.kubectl_aliquot import aliquot as cluster_view
from aliquot.cli.cluster.kubectl_inspect import inspect
from aliquot.cli.main import cli
from aliquot.cli.tables import printable
from fuzz.kubernetes import NODES, PODS
from kit.clusters.kubectl import FakeCluster
from kit.machines.fakedaemon import FakeDaemon, a_card, a_queue_entry, a_share, a_status, a_tenant

from .inputs import ODD_TEXTS, changed
from .target import Check, Target, plain

_FOUND = {"kind": "stranger", "uuid": "GPU-0", "pid": 4711, "text": "python is nobody's", "tenant": None}
_STATUS = a_status(
    tenants=[a_tenant("train", command=["python", "train.py"], cards=[a_share(state="paused", paused_by="web")])],
    queue=[a_queue_entry("next", command=["a"], kept_for="other")],
    cards=[a_card("box", 0, 4, healthy=False, why_out="it is lost"), a_card("box", 1)],
    findings=[_FOUND],
)
_KEPT = {
    "phase",
    "state",
    "class",
    "level",
    "policy",
    "kind",
    "uuid",
    "node",
    "dialect",
    "type",
    "restart_policy",
    "offers",
}
_COMMANDS = (
    ("top", "--once"),
    ("ps",),
    ("top", "--once", "-o", "json"),
    ("ps", "-o", "json"),
)

_VIEWS: tuple[tuple[click.Command, list[str]], ...] = (
    (cluster_view, ["-o", "wide"]),
    (cluster_view, ["--pending"]),
    (cluster_view, ["-d"]),
    (cluster_view, ["-o", "json"]),
    (inspect, []),
    (inspect, ["-d"]),
    (inspect, ["-o", "json"]),
)

hostile = st.sampled_from([text for text in ODD_TEXTS if text.strip()]) | st.text(min_size=1, max_size=12)


@st.composite
def _spoken(draw: st.DrawFn) -> Any:
    """The machine's own account of itself, with every word of a stranger's made hostile."""
    return _worded(draw, copy.deepcopy(_STATUS), "")


def _worded(draw: st.DrawFn, value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {key: _worded(draw, inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_worded(draw, inner, key) for inner in value]
    return draw(hostile) if isinstance(value, str) and key not in _KEPT else value


def harmless(text: str) -> None:
    """Nothing in it but what is printed, line by line; and the wide space of Chinese text."""
    for line in text.replace("\u3000", "").split("\n"):
        assert line.isprintable(), line


@contextlib.contextmanager
def _daemon() -> Iterator[Check]:
    home = Path(tempfile.mkdtemp(prefix="alq"))
    daemon = FakeDaemon(home, status=a_status())

    def check(status: Any) -> None:
        daemon.answers["status"] = status
        for words in _COMMANDS:
            done = CliRunner().invoke(cli, list(words))
            assert isinstance(done.exception, SystemExit | None), (words, done.exception)
            harmless(done.output)

    with mock.patch.dict(os.environ, {"ALIQUOT_HOME": str(home)}):
        yield check
    daemon.close()
    shutil.rmtree(home)


@contextlib.contextmanager
def _cluster() -> Iterator[Check]:
    """Names of objects are the API server's to check; everything else in them is somebody's own."""
    with tempfile.TemporaryDirectory(prefix="alq-fuzz-") as folder:
        paper = FakeCluster(Path(folder))

        def check(objects: Any) -> None:
            shown = [item for item in objects if isinstance(item, dict) and item.get("kind") in ("Node", "Pod")]
            paper.show(
                *(item for item in shown if isinstance(item.get("metadata"), dict) and "name" in item["metadata"])
            )
            for command, words in _VIEWS:
                done = CliRunner().invoke(command, words)
                assert isinstance(done.exception, SystemExit | None), (words, done.exception)
                harmless(done.output)

        with mock.patch.dict(os.environ, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}):
            yield check


_OBJECTS: list[list[Any]] = [[{"kind": "Node", **NODES[0]}, *PODS[:4]], [{"kind": "Node", **NODES[1]}, *PODS[7:]]]

TARGETS: tuple[Target, ...] = (
    plain("printable", hostile, lambda text: harmless(printable(text)), 200),
    Target("views-of-a-machine", _spoken(), _daemon, 8),
    Target("views-of-a-cluster", changed(_OBJECTS).filter(lambda found: isinstance(found, list)), _cluster, 4),
)
