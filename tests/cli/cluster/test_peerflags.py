"""What gpushare's own manifests tell its programs, told to ours."""

from __future__ import annotations

import pytest

from aliquot.cli.cluster.agent import agent
from aliquot.cli.cluster.peerflags import extender_words, plugin_words
from kit.kubectl import invoked


def test_the_device_plugins_own_line_is_taken_as_it_stands() -> None:
    words = plugin_words(["-logtostderr", "--v=5", "--memory-unit=GiB"])
    assert words == ["--log-level=debug", "--memory-unit=GiB"]
    with agent.make_context("agent", [*words]) as context:
        assert (context.params["log_level"], context.params["memory_unit"]) == ("debug", "GiB")


@pytest.mark.parametrize("words", [["--v=2"], ["-v=0"], ["--stderrthreshold=INFO", "--log_dir=/var/log"]])
def test_where_logs_go_is_no_matter_of_ours(words: list[str]) -> None:
    assert plugin_words(words) == []


def test_go_takes_one_dash_for_two() -> None:
    assert plugin_words(["-memory-unit=MiB"]) == ["--memory-unit=MiB"]


def test_what_we_do_not_have_is_refused_by_its_name() -> None:
    result = invoked(agent, *plugin_words(["--mps=true"]))
    assert (result.exit_code, "--mps" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("level", "expected"), [("debug", ["--log-level=debug"]), ("warn", ["--log-level=warning"]), ("", []), ("5", [])]
)
def test_the_extenders_level_of_logs_is_in_its_environment(level: str, expected: list[str]) -> None:
    assert extender_words([], {"LOG_LEVEL": level}) == expected
