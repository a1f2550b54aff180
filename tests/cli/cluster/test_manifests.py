"""Manifests as strangers write them, each with what must become of it: `manifests/*.yaml`, through `aliquot explain`.

A case has one outcome. Most were written from the seeds and the vendors' public documents before they were tried; where
Kubernetes itself refuses a field that we do not read (a missing image), the case says what we do:

    fits        the node, or a pattern; {node, pods, others} for several Pods, and others that are not ours. `cards`: by
                container, how many, GiB of each, percent of compute, whether it is whole; `notes`: what these contain
    refused     what the sentence contains; every sentence names a field
    waits       what the output contains
    unreadable  the same, with exit code 2
    ignored     the Pod is not ours; what the notes contain
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from aliquot.cli.cluster.explain import explain

FOLDER = Path(__file__).parent / "manifests"
CLUSTER = FOLDER / "cluster.yaml"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['case']}")
    for path in sorted(FOLDER.glob("*.yaml"))
    if path != CLUSTER
    for case in yaml.safe_load(path.read_text())
]
FIELD = re.compile(r"(metadata|spec|annotations)\b.*( is missing: |: .* is not allowed: )", re.DOTALL)
Json = dict[str, Any]


def run(folder: Path, case: Json, *options: str) -> Result:
    (folder / "pods.yaml").write_text(case["manifest"])
    words = ["-f", str(folder / "pods.yaml"), "--cluster", str(CLUSTER), *options]
    return CliRunner().invoke(explain, words, catch_exceptions=False)


def test_every_case_has_one_outcome_and_a_name_of_its_own() -> None:
    assert len(CASES) > 260
    assert len({str(case.id) for case in CASES}) == len(CASES)
    outcomes = {"fits", "refused", "waits", "unreadable", "ignored"}
    assert all(len(outcomes & case.values[0].keys()) == 1 for case in CASES)  # type: ignore[union-attr]


@pytest.mark.parametrize("case", CASES)
def test_manifest_of_a_stranger(tmp_path: Path, case: Json) -> None:
    result = run(tmp_path, case, "-o", "json")
    if "unreadable" in case:
        assert result.exit_code == 2
        assert all(words in result.output for words in case["unreadable"])
        return
    pods: list[Json] = json.loads(result.stdout)
    if "fits" in case:
        wanted = case["fits"] if isinstance(case["fits"], dict) else {"node": case["fits"], "pods": 1}
        assert [pod["ours"] for pod in pods].count(False) == wanted.get("others", 0)
        pods = [pod for pod in pods if pod["ours"]]
        assert [pod["error"] for pod in pods] == [None] * wanted["pods"]
        assert all(fnmatch(pod["node"], wanted["node"] or "*") for pod in pods)
        assert all(cards(pod) == case["cards"] for pod in pods)
        assert all(words in result.stderr for words in case.get("notes", ()))
    elif "refused" in case:
        error = pods[0]["error"]
        assert FIELD.match(error)
        assert all(words in error for words in case["refused"])
    elif "waits" in case:
        assert {pod["error"] for pod in pods} == {None}
        assert False in [pod["fits"] for pod in pods]
        output = run(tmp_path, case).output
        assert all(words in output for words in case["waits"])
    else:
        assert [pod["ours"] for pod in pods] == [False]
        assert all(words in result.stderr for words in case["ignored"])


def cards(pod: Json) -> dict[str, list[Any]]:
    """As the cases say it: all cards of a container have equal shares."""
    found = {}
    for name, shares in pod["containers"].items():
        (share,) = {(round(share["memory_gib"], 2), share["core"], share["whole"]) for share in shares}
        found[name] = [len(shares), *share]
    return found
