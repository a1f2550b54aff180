"""Images as archives: what is read from one is what was put there."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.registries import archives
from testbed.registries.images import Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    serving = Registry()
    yield serving
    serving.close()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    program = tmp_path / "hello"
    program.write_bytes(b"#!/bin/sh\n")
    path = tmp_path / "hello.tar"
    path.write_bytes(archives.of_one_program(program))
    return path


def _get(registry: Registry, path: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{registry.url}/v2/{path}", timeout=10) as response:
        found: dict[str, object] = json.load(response)
    return found


def test_a_name_that_the_registry_was_given_means_what_is_in_the_archive(registry: Registry, archive: Path) -> None:
    registry.give("hello:1", archive)
    digest, blobs = archives.read_archive(archive)
    assert _get(registry, "library/hello/manifests/1") == json.loads(blobs[digest].read())


def test_probe_image_is_recognised_in_another_version(registry: Registry, archive: Path) -> None:
    registry.give("team/hello:1", archive)
    manifest = registry.image.blobs[registry.image.manifests["probe"]]
    assert _get(registry, "team/hello/manifests/2") == json.loads(manifest)


def test_an_image_of_one_program_begins_with_it(archive: Path) -> None:
    digest, blobs = archives.read_archive(archive)
    config = json.loads(blobs[json.loads(blobs[digest].read())["config"]["digest"]].read())
    assert config["config"]["Entrypoint"] == ["hello"]
