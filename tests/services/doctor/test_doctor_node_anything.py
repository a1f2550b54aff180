"""Whatever the API server's objects look like, the node's checks have an answer."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects import Rules
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.workloads import read_pod
from aliquot.services.doctor.agent import agent_findings
from aliquot.services.doctor.findings import grouped
from aliquot.services.doctor.holdings import holding_findings
from aliquot.services.doctor.site import Places
from kit.agents.nodesite import the_node, the_pod, the_site, the_spec
from kit.values.anyjson import places_in
from services.doctor.test_doctor_anything import anything, changed

WHOLE = {"node": the_node(), "pod": the_pod()}
SITES = [
    the_site(),
    the_site(agent=None, processes=None, specs=(the_spec(), the_spec(uid="uid-of-old"))),
    the_site(places=Places(cdi=None), specs=()),
]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_node_findings_for_any_changed_value(data: st.DataObject) -> None:
    places = [path for path in places_in(WHOLE) if len(path) > 1 and path[-1] != "kind"]
    whole: Any = changed(WHOLE, data.draw(st.sampled_from(places)), data.draw(anything))
    site = data.draw(st.sampled_from(SITES))
    node = read_object(whole["node"], NodeObject, "node")
    findings = [
        *agent_findings(site, node, Rules()),
        *holding_findings(site, node, [read_pod(whole["pod"])], Rules()),
    ]
    assert all(group.what and (group.advice is None or group.advice) for group in grouped(findings))
