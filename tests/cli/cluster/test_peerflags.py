"""What gpushare's own manifests tell its programs, told to ours."""

from __future__ import annotations

import pytest

from aliquot.cli.cluster.agent import agent
from aliquot.cli.cluster.peerflags import extender_arguments, plugin_arguments
from kit.kubectl import invoked


def test_gpushare_plugin_flags_are_accepted() -> None:
    words = plugin_arguments(["-logtostderr", "--v=5", "--memory-unit=GiB"])
    assert words == ["--log-level=debug", "--memory-unit=GiB"]
    with agent.make_context("agent", [*words]) as context:
        assert (context.params["log_level"], context.params["memory_unit"]) == ("debug", "GiB")


@pytest.mark.parametrize("words", [["--v=2"], ["-v=0"], ["--stderrthreshold=INFO", "--log_dir=/var/log"]])
def test_log_destination_flags_are_dropped(words: list[str]) -> None:
    assert plugin_arguments(words) == []


def test_single_dash_flags_are_accepted() -> None:
    assert plugin_arguments(["-memory-unit=MiB"]) == ["--memory-unit=MiB"]


def test_unknown_peer_flag_is_refused() -> None:
    result = invoked(agent, *plugin_arguments(["--mps=true"]))
    assert (result.exit_code, "--mps" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("level", "expected"), [("debug", ["--log-level=debug"]), ("warn", ["--log-level=warning"]), ("", []), ("5", [])]
)
def test_extender_log_level_comes_from_environment(level: str, expected: list[str]) -> None:
    assert extender_arguments([], {"LOG_LEVEL": level}) == expected
