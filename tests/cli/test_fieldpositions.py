"""The line of a field that an error names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.fieldpositions import position_in
from aliquot.cli.manifests import read_manifests

TWO = """\
apiVersion: v1
kind: Pod
metadata:
  name: a
spec:
  containers:
  - name: first
  - name: second
    resources:
      limits:
        aliyun.com/gpu-mem: x
---
kind: List
items:
- kind: Deployment
  metadata: {name: b}
  spec:
    template:
      spec:
        containers: [{name: only, resources: {}}]
"""


@pytest.mark.parametrize(
    ("number", "message", "position"),
    [
        (0, 'Pod default/a: spec.containers[1].resources.limits["aliyun.com/gpu-mem"]: "x" is not allowed', "11:9"),
        (0, "metadata.name: x", "4:3"),
        (0, "spec.containers[1].image is missing", "8:5"),
        (0, "spec.containers[7].image is missing", "6:3"),
        (0, "it is in another namespace", "1:1"),
        (1, "Deployment default/b: metadata.name: x", "16:14"),
        (1, "spec.containers[0].resources.limits is missing", "20:35"),
        (1, "spec.template.spec.containers[0].resources.limits is missing", "20:35"),
        (1, "status.x", "15:3"),
        (1, "Deployment default/b: spec.selector is missing", "17:3"),
        (1, 'Deployment default/b: apiVersion: "v1" is not allowed', "15:3"),
    ],
)
def test_error_names_the_line_of_the_field(tmp_path: Path, number: int, message: str, position: str) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    assert read_manifests(file)[number].error(message).message == f"{file}:{position}: {message}"


@given(st.binary(max_size=60), st.integers(1, 4), st.text(max_size=60))
def test_any_file_and_message_have_a_position(raw: bytes, line: int, message: str) -> None:
    assert position_in(raw, (line, 1), f"spec{message}") >= (1, 1)
