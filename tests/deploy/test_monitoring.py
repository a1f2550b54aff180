"""Alerts and the dashboard: what they ask Prometheus is there, and the page says the same as the chart."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from kit.values.chart import CHART, ROOT, Objects

PAGE = ROOT / "docs" / "operations.md"
ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["rules"]
DASHBOARD: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())


def _known() -> set[str]:
    """Every metric that the pages tell of, which tests/test_docs.py holds to the code."""
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("operations.md", "agent.md"))
    return set(re.findall(r"`(aliquot_\w+)`", pages))


def _asked(expression: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\baliquot_[a-z_]+", expression)}


def test_the_page_has_the_alerts_of_the_chart() -> None:
    text = PAGE.read_text()
    block = text[text.index("kind: PrometheusRule") :]
    documented = yaml.safe_load(block[: block.index("```")])["spec"]["groups"][0]["rules"]
    assert documented == [{key: rule[key] for key in rule if key != "annotations"} for rule in ALERTS]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_metrics_that_there_are_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert _asked(rule["expr"]) <= _known()
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description"}


def test_what_prometheus_fills_in_of_an_alert_reaches_it_as_it_is(objects: Objects) -> None:
    """Helm's own templates have the same braces."""
    made = objects.one("PrometheusRule", "aliquot")["spec"]["groups"][0]["rules"]
    assert made == ALERTS


def _expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    assert {name for expression in (*_expressions(), *variables) for name in _asked(expression)} <= _known()


def test_the_dashboard_shows_every_metric_of_a_card_and_of_a_pod() -> None:
    shown = {name for expression in _expressions() for name in _asked(expression)}
    of_cards_and_pods = {name for name in _known() if name.startswith(("aliquot_card_", "aliquot_tenant_"))}
    assert of_cards_and_pods <= shown


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24


def test_the_dashboard_is_shipped_whole(objects: Objects) -> None:
    data = objects.one("ConfigMap", "aliquot-dashboard")["data"]
    assert json.loads(data["aliquot.json"]) == DASHBOARD


def test_monitors_find_the_ports_by_their_names(objects: Objects) -> None:
    (service,) = objects.one("ServiceMonitor", "aliquot-scheduler")["spec"]["endpoints"]
    (pod,) = objects.one("PodMonitor", "aliquot-agent")["spec"]["podMetricsEndpoints"]
    made = [container for spec in objects.pods().values() for container in spec["containers"]]
    ports = {port["name"] for container in made for port in container.get("ports", ())}
    assert {service["port"], pod["port"]} <= ports
    assert pod["honorLabels"], "series of tenants carry their own namespace and pod"


def test_the_alert_for_a_silent_agent_names_the_job_that_the_monitor_makes(objects: Objects) -> None:
    """A PodMonitor's job is called NAMESPACE/NAME."""
    monitor = objects.one("PodMonitor", "aliquot-agent")["metadata"]
    (silent,) = (rule for rule in ALERTS if rule["alert"] == "AliquotAgentSilent")
    pattern = re.search(r'job=~"([^"]+)"', silent["expr"])
    assert pattern
    assert re.fullmatch(pattern[1], f"{monitor['namespace']}/{monitor['name']}")
