"""An agent's parts, put together as the command line says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.kube import Server
from aliquot.adapters.nvml import NvmlError
from aliquot.services import assembly
from aliquot.services.agent import Settings
from aliquot.services.assembly import run_agent


def test_xids_that_the_nodes_owner_wants_ignored_reach_the_health_of_the_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class NoCards:
        cards = ()

        def __init__(self, nvml: object, **told: Any) -> None:
            made.append(told)

    monkeypatch.setattr(assembly, "Nvml", object)
    monkeypatch.setattr(assembly, "CardHealth", NoCards)
    settings = Settings("n1", tmp_path / "t", tmp_path / "a")
    with pytest.raises(NvmlError, match="no card"):
        run_agent(
            Server("http://nowhere"),
            settings,
            database=tmp_path / "state.db",
            playing=None,
            driver="runtime",
            ignored_xids={94},
        )
    assert made == [{"remembered": (), "ignored": {94}}]
