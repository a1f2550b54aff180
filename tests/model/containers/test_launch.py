"""The launch spec over the socket, between a daemon and a supervisor that may be of other releases."""

from __future__ import annotations

import json

from aliquot.model.containers.launch import ContainerLaunch, LaunchSpec, parse_launch, render_launch

MAIN = ContainerLaunch("main", False, False, ["sleep", "1"], {"A": "1"}, ["/home/me"], "/log/main.log")


def test_launch_spec_comes_back_from_its_json() -> None:
    for spec in (LaunchSpec("Never", 30.0, [MAIN], 6, 1 << 20), LaunchSpec("Always", 0.0, [MAIN, MAIN])):
        assert parse_launch(json.loads(json.dumps(render_launch(spec)))) == spec


def test_launch_spec_has_the_json_that_earlier_supervisors_read() -> None:
    assert render_launch(LaunchSpec("Never", 30.0, [MAIN])) == {
        "restart_policy": "Never",
        "grace": 30.0,
        "containers": [
            {
                "name": "main", "init": False, "sidecar": False, "command": ["sleep", "1"], "env": {"A": "1"},
                "folders": ["/home/me"], "log": "/log/main.log",
            }
        ],
        "most_restarts": None,
        "log_limit": None,
    }  # fmt: skip


def test_launch_spec_of_another_release_is_read_as_far_as_it_is_known() -> None:
    message = render_launch(LaunchSpec("Never", 30.0, [MAIN]))
    del message["most_restarts"], message["log_limit"]
    message["containers"][0]["later"] = 1
    assert parse_launch(message | {"later": 2}) == LaunchSpec("Never", 30.0, [MAIN])
