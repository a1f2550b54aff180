"""The metrics of qGPU's exporter: its names, its labels, its units."""

from __future__ import annotations

from aliquot.model.status.machine import HardwareStatus
from aliquot.services.daemon.metrics import expose
from aliquot.services.daemon.qgpumetrics import qgpu_families
from kit.agents.fakeagent import FakeAgent


def test_cards_and_pods_have_the_exporters_names_labels_and_units() -> None:
    status = FakeAgent().status()
    card, tenant = status.cards[0], status.tenants[0]
    card.hardware = HardwareStatus(power_watts=120.0, encoder_utilisation=0.5)
    share = tenant.cards[0]
    share.memory_used_bytes, share.memory_limit_bytes, share.share, share.core = 1 << 30, 4 << 30, 0.25, 50.0
    tenant.cards = [share]
    text = expose(qgpu_families(status, "n1", lambda uid: "main")).decode()
    pod = f'namespace="{tenant.namespace}",node="n1",pod="{tenant.pod}"'
    container = f'container="main",{pod}'
    lines = text.splitlines()
    assert f'gpu_power_usage{{card="{card.index}",node="n1"}} 120.0' in lines
    assert f'gpu_enc_utilization_percentage{{card="{card.index}",node="n1"}} 50.0' in lines
    for name, value in (
        ("pod_core_usage", 25.0),
        ("pod_mem_usage", 1024.0),
        ("pod_core_utilization_percentage", 50.0),
        ("pod_mem_utilization_percentage", 25.0),
        ("pod_mem_request", 4096.0),
    ):
        assert f"{name}{{{pod}}} {value}" in lines, name
    for name, value in (("container_gpu_utilization", 25.0), ("container_gpu_memory_total", 1024.0)):
        assert f"{name}{{{container}}} {value}" in lines, name
    assert "gpu_core_usage" in text
    assert "gpu_mem_utilization_percentage" in text


def test_a_request_that_was_not_made_has_no_metric() -> None:
    status = FakeAgent().status()
    for share in status.tenants[0].cards:
        share.core, share.exclusive = None, False
    status.tenants = status.tenants[:1]
    text = expose(qgpu_families(status, "n1")).decode()
    assert "\npod_core_request{" not in text
    assert "\npod_core_usage{" in text
