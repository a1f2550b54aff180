"""Our programs accept the flags in gpushare's own manifests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.cluster.agent import agent
from aliquot.cli.cluster.peerflags import extender_arguments, plugin_arguments
from aliquot.cli.errors import InputError
from kit.clusters.kubectl import invoked

# Every flag of gpushare-device-plugin-v2 (cmd/nvidia/main.go) and of the glog it is built with.
SWITCHES = ("mps", "health-check", "query-kubelet", "logtostderr", "alsologtostderr")
VALUES = {
    "kubelet-address": "0.0.0.0",
    "kubelet-port": "10250",
    "client-cert": "/etc/cert.pem",
    "client-key": "/etc/key.pem",
    "token": "secret",
    "timeout": "10",
    "stderrthreshold": "INFO",
    "log_dir": "/var/log",
    "log_backtrace_at": "main.go:10",
    "vmodule": "main=2",
}


def test_gpushare_plugin_flags_are_accepted() -> None:
    converted = plugin_arguments(["-logtostderr", "--v=5", "--memory-unit=GiB"])
    assert (converted.arguments, converted.ignored) == (["--log-level=debug", "--memory-unit=GiB"], {})
    with agent.make_context("agent", [*converted.arguments]) as context:
        assert (context.params["log_level"], context.params["memory_unit"]) == ("debug", "GiB")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(SWITCHES), st.sampled_from(["", "=true", "=false"]))
            .map("".join)
            .map(lambda f: [f]),
            st.sampled_from(sorted(VALUES)).flatmap(
                lambda name: st.sampled_from([[f"{name}={VALUES[name]}"], [name, VALUES[name]]])
            ),
        ),
        max_size=12,
    ),
    st.sampled_from(["-", "--"]),
)
def test_every_flag_of_the_plugin_leaves_the_agents_options_alone(flags: list[list[str]], dash: str) -> None:
    words = [word for flag in flags for word in (f"{dash}{flag[0]}", *flag[1:])]
    converted = plugin_arguments(words)
    assert converted.arguments == []
    named = {f"--{flag[0].partition('=')[0].replace('_', '-')}" for flag in flags}
    assert named - converted.ignored.keys() <= {"--logtostderr", "--alsologtostderr"}, "the rest are named in the log"


def test_a_flag_without_effect_is_named_with_the_reason_and_without_its_value() -> None:
    ignored = plugin_arguments(["--mps=true", "--token=secret", "-health-check"]).ignored
    assert list(ignored) == ["--mps", "--token", "--health-check"]
    assert "time slices" in ignored["--mps"]
    assert "secret" not in str(ignored)


def test_a_log_that_should_not_go_to_stderr_goes_there_and_a_warning_says_so() -> None:
    assert plugin_arguments(["-logtostderr=false"]).ignored == {"--logtostderr": "the log goes to stderr"}
    assert plugin_arguments(["-logtostderr=true", "--alsologtostderr"]).ignored == {}


@pytest.mark.parametrize("words", [["--v=2"], ["-v=0"], ["-v", "4"]])
def test_a_low_verbosity_leaves_the_log_level_alone(words: list[str]) -> None:
    assert plugin_arguments(words).arguments == []


@pytest.mark.parametrize("words", [["--v=much"], ["--v"], ["--token"]])
def test_a_flag_without_a_usable_value_is_refused(words: list[str]) -> None:
    with pytest.raises(InputError):
        plugin_arguments(words)


def test_single_dash_flags_are_accepted() -> None:
    assert plugin_arguments(["-memory-unit=MiB"]).arguments == ["--memory-unit=MiB"]
    assert plugin_arguments(["-memory-unit", "MiB"]).arguments == ["--memory-unit", "MiB"]


def test_flag_that_neither_knows_is_refused() -> None:
    result = invoked(agent, *plugin_arguments(["--msp=true"]).arguments)
    assert (result.exit_code, "--msp" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["--log-level=debug"]),
        ("warn", ["--log-level=warning"]),
        ("error", ["--log-level=warning"]),
        ("", []),
        ("5", []),
    ],
)
def test_extender_log_level_comes_from_environment(level: str, expected: list[str]) -> None:
    assert extender_arguments([], {"LOG_LEVEL": level, "PORT": "12345"}).arguments == expected


def test_extender_without_a_port_listens_where_gpushares_does() -> None:
    assert extender_arguments([], {}).arguments == ["--port=39999"]


def test_extender_accepts_log_flags_and_options_of_the_scheduler() -> None:
    converted = extender_arguments(["-logtostderr", "--v=5", "--log_dir=/x", "--priority=spread"], {"PORT": "1"})
    assert converted.arguments == ["--log-level=debug", "--priority=spread"]
    assert list(converted.ignored) == ["--log-dir"]


def test_extender_names_the_environment_variable_without_effect() -> None:
    assert list(extender_arguments([], {"PORT": "1", "THREADNESS": "4"}).ignored) == ["$THREADNESS"]
