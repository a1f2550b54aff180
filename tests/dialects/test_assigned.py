"""What a dialect's own tools expect on a Pod that runs on its cards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.dialects.registry import render_assigned
from kit.values.builders import a_claim


@pytest.mark.parametrize("dialect", ["qgpu", "t9k", "gpushare", "hami"])
def test_only_gpushare_marks_a_pod_as_assigned(dialect: str) -> None:
    marks = render_assigned(replace(a_claim(), dialect=dialect))
    assert marks == ({"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"} if dialect == "gpushare" else {})
