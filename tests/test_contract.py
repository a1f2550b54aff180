"""The dashboard's API as TypeScript, and the mock server that plays it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from aliquot.model.cardstate.control import ControlReason
from aliquot.model.node import NoteKind
from aliquot.model.reason import Reason
from aliquot.model.status import messages
from aliquot.model.status.dashboard import ANSWERS, DashboardState, History, Node, Pod, SearchResult, Tick
from aliquot.model.status.messages import MessageCode
from aliquot.model.tenant import FindingKind

WEB = Path(__file__).parent.parent / "web"
NODE = shutil.which("node")
# Every answer of the two mocks, by name, as JSON.
PLAY = """
import { Cluster } from "./mock/cluster.mjs";
import { Machine } from "./mock/machine.mjs";
const cluster = new Cluster(300, 8), machine = new Machine(false), idle = new Machine(true);
const waiting = machine.waiting().pods[0].key;
const nodes = Object.keys(cluster.trouble).map((row) => cluster.node(cluster.names[row]));
const answers = {
  state: [cluster.state(), machine.state(), idle.state()],
  tick: [cluster.tick(), machine.tick(), idle.tick()],
  node: [...nodes, ...cluster.names.slice(0, 40).map((name) => cluster.node(name)), machine.node("node-1")],
  pod: [cluster.pod("team-1/train-1"), cluster.pod("a/b"), machine.pod(waiting), machine.pod("default/serve-llm-0")],
  history: [cluster.history(600), machine.history(86400)],
  search: [cluster.search("1", 5), machine.search("bin", 5)],
};
console.log(JSON.stringify(answers));
"""
KINDS = {"state": DashboardState, "tick": Tick, "node": Node, "pod": Pod, "history": History, "search": SearchResult}


@pytest.fixture
def contract() -> ModuleType:
    spec = importlib.util.spec_from_file_location("contract", WEB / "contract.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_contract_ts_is_what_the_structs_generate(contract: ModuleType) -> None:
    assert contract.FILE.read_text() == contract.Generator().render(ANSWERS), "run make contract"


def test_contract_ts_lists_every_reason_and_message_code(contract: ModuleType) -> None:
    text = contract.FILE.read_text()
    for code in (*Reason, *MessageCode):
        assert f'  "{code.value}",\n' in text


def test_chinese_words_every_reason_message_code_and_note() -> None:
    """tsc enforces it for the first two, where there is npm: they are Records of the generated codes."""
    words = (WEB / "src" / "text" / "zh-words.ts").read_text()
    reasons, messages, notes, controls = (
        words.partition(f"const {name}: Record<")[2].partition("\n};")[0]
        for name in ("REASONS", "MESSAGES", "NOTES", "CONTROL_REASONS")
    )
    tables: list[tuple[str, Iterable[StrEnum]]] = [
        (reasons, Reason),
        (messages, MessageCode),
        (notes, NoteKind),
        (controls, ControlReason),
    ]
    for table, codes in tables:
        for code in codes:
            assert f"\n  {code.value}: " in table or f'\n  "{code.value}": ' in table


def test_every_finding_has_a_message_code() -> None:
    assert set(messages.FINDINGS) == set(FindingKind)


@pytest.mark.skipif(NODE is None, reason="no node: the mock server is a program for it")
def test_mock_answers_follow_the_contract() -> None:
    assert NODE is not None
    played = subprocess.run(
        [NODE, "--input-type=module", "-e", PLAY], cwd=WEB, capture_output=True, text=True, check=True
    )
    answers: dict[str, list[Any]] = json.loads(played.stdout)
    for kind, found in answers.items():
        for answer in found:
            decoded = msgspec.convert(answer, KINDS[kind])
            # Strict: a field that the struct does not have, or that the server would leave out, does not come back.
            assert msgspec.json.decode(msgspec.json.encode(decoded)) == answer
