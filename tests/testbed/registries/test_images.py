"""The image of the tests, the registry that serves it, and the programs in it, without a node."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.registries.images import SANDBOX, Registry, programs


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    serving = Registry()
    yield serving
    serving.close()


def _begins_with(registry: Registry, image: str) -> list[str]:
    """What a container of this image runs, as a runtime finds it out."""

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"{registry.url}/v2/{path}", timeout=10) as answer:
            return json.load(answer)

    name, tag = image.rsplit(":", 1)
    manifest = ask(f"{name}/manifests/{tag}")
    words: list[str] = ask(f"{name}/blobs/{manifest['config']['digest']}")["config"]["Entrypoint"]
    return words


@pytest.mark.parametrize("image", ["library/nginx:latest", "cheyang/gpu-player:v2", "a/deep/name:1"])
def test_every_image_is_the_probe(registry: Registry, image: str) -> None:
    assert _begins_with(registry, image) == ["/probe"]


def test_the_image_of_sandboxes_only_waits(registry: Registry) -> None:
    assert _begins_with(registry, SANDBOX.partition("/")[2]) == ["/pause"]


def test_what_no_image_has_is_not_found(registry: Registry) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{registry.url}/v2/some/blobs/sha256:{0:064x}", timeout=10)
    with refused.value as answer:
        assert answer.status == 404


def test_an_image_is_the_same_whenever_it_is_made(registry: Registry) -> None:
    other = Registry()
    other.close()
    assert other.image.manifests == registry.image.manifests


def test_the_probe_reports_without_a_driver_and_ends_as_ordered() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "ALIQUOT_"))}
    environment = {**plain, "T9K_VISIBLE": 'one "and" two', "PATH_OF_NO_INTEREST": "x"}
    done = subprocess.run(
        [programs()["probe"], "exit", "5"], capture_output=True, text=True, env=environment, timeout=10
    )
    report = json.loads(done.stdout)
    assert done.returncode == 5
    assert report["event"] == "report"
    assert report["env"] == {"T9K_VISIBLE": 'one "and" two'}


def test_the_probe_takes_its_words_from_the_environment_first() -> None:
    environment = {**os.environ, "PROBE": "say exit 6"}
    done = subprocess.run(
        [programs()["probe"], "exit", "5"], capture_output=True, text=True, env=environment, timeout=10
    )
    assert done.returncode == 6
    assert len(done.stdout.splitlines()) == 2


def test_the_probe_ends_at_once_when_it_is_asked_to() -> None:
    with subprocess.Popen([programs()["probe"], "--an", "--unknown=command"], stdout=subprocess.PIPE) as probe:
        assert probe.stdout is not None
        probe.stdout.readline()
        probe.terminate()
        assert probe.wait(10) == 0


@pytest.mark.parametrize(
    "linux",
    [
        {"seccomp": {"defaultAction": "}", "syscalls": [{"names": ["a"], "args": [{"x": 1}]}]}, "after": 1},
        {"before": {"x": "{"}, "seccomp": {"defaultAction": 'a \\ "'}},
        {"before": 1},
    ],
    ids=["first", "last", "none"],
)
def test_the_runtime_before_runc_drops_the_seccomp_profile_and_nothing_else(
    tmp_path: Path, linux: dict[str, object]
) -> None:
    runc = tmp_path / "runc"
    runc.write_text('#!/bin/sh\necho "$@"\n')
    runc.chmod(0o755)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"process": {}, "linux": linux}, separators=(",", ":")))
    command = [str(programs()["runtime"]), "--root", "/x", "create", "--bundle", str(tmp_path), "id"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert done.stdout.split() == command[1:]
    kept = {key: value for key, value in linux.items() if key != "seccomp"}
    assert json.loads(config.read_text()) == {"process": {}, "linux": kept}
