"""Line charts as SVG."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from aliquot.cli.plot import Points, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(lines: dict[str, Points], ideal: Points = (), title: str = "t") -> ElementTree.Element:
    return ElementTree.fromstring(line_chart(title, "note", "across", "up", lines, ideal))


def texts(chart: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in chart.iter(f"{SVG}text")]


def paths(chart: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in element.attrib["d"][1:].split("L")]  # type: ignore[misc]
        for element in chart.iter(f"{SVG}path")
    ]


def test_line_chart_names_lines() -> None:
    chart = drawn({"fgd": [(0, 0), (100, 90)], "dense": [(0, 0), (100, 95)]})
    assert len(paths(chart)) == 2
    assert {"fgd", "dense", "across", "up", "note"} <= set(texts(chart))


def test_line_chart_coordinates() -> None:
    chart = drawn({"a": [(0, 0), (50, 20), (130, 97.5)]}, ideal=[(0, 0), (100, 100)])
    _, _, width, height = map(float, chart.attrib["viewBox"].split())
    for path in paths(chart):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in path)
        assert path == sorted(path)
        assert [y for _, y in path] == sorted((y for _, y in path), reverse=True)


def test_line_chart_escapes_names() -> None:
    chart = drawn({"a<b>&'\"": [(0, 0), (1, 1)]}, title="<script>")
    assert "a<b>&'\"" in texts(chart)
    assert not list(chart.iter("script"))


def test_line_chart_names_do_not_overlap() -> None:
    chart = drawn({name: [(0, 0), (10, 10)] for name in ("a", "b", "c")})
    heights = [float(element.attrib["y"]) for element in chart.iter(f"{SVG}text") if element.text in ("a", "b", "c")]
    assert min(abs(one - other) for at, one in enumerate(heights) for other in heights[:at]) >= 16


@pytest.mark.parametrize(
    "points", [[], [(0, 0)], [(0, 0), (0, 0)], [(0, 0), (1e-9, 1e-9)], [(0, 0), (1e15, 3)], [(0, 0), (1, math.inf)]]
)
def test_line_chart_of_nothing(points: Points) -> None:
    drawn({"a": points})
