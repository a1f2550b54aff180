"""The status in Prometheus's words."""

from __future__ import annotations

from typing import Any

from aliquot.model.status.machine import Status
from aliquot.services.daemon.metrics import exposition
from kit.machines import fakedaemon as kit
from kit.machines.fakedaemon import a_card, a_queue_entry, a_share, machine_status
from kit.running.leaks import left_behind


def a_status(**share: Any) -> Status:
    card = a_card(
        "box",
        0,
        model='Odd "model"\\',
        memory_bytes=100,
        memory_used_bytes=None,
        memory_booked_bytes=10,
        core_booked=30.0,
        memory_unregistered_bytes=7,
    )
    figures = {
        "share": 0.25,
        "memory_used_bytes": 5,
        "memory_limit_bytes": 10,
        "memory_over_bytes": 4,
        "paused_seconds": 1.5,
        "preemptions": 3,
        "refused_allocations": 2,
        "state": "paused",
    }
    tenant = kit.a_tenant("train", **{"class": "offline"}, cards=[a_share(0, **{**figures, **share})])
    queue = [a_queue_entry("a"), a_queue_entry("b")]
    finding = {"uuid": "GPU-0", "pid": 7, "text": "is nobody's"}
    return machine_status(kit.a_status(cards=[card], tenants=[tenant], queue=queue, findings=[finding]))


def lines(status: Status) -> list[str]:
    return exposition(status).decode().splitlines()


def test_metrics_have_every_figure_of_a_tenant() -> None:
    labels = '{card="0",class="offline",tenant="train",uuid="GPU-0"}'
    exposed = lines(a_status())
    for expected in (
        f"aliquot_tenant_share_ratio{labels} 0.25",
        f"aliquot_tenant_memory_used_bytes{labels} 5.0",
        f"aliquot_tenant_memory_limit_bytes{labels} 10.0",
        f"aliquot_tenant_memory_over_bytes{labels} 4.0",
        f"aliquot_tenant_paused_seconds_total{labels} 1.5",
        f"aliquot_tenant_preemptions_total{labels} 3.0",
        f"aliquot_tenant_refused_allocations_total{labels} 2.0",
        "aliquot_queue_length 2.0",
        "aliquot_findings 1.0",
        "# TYPE aliquot_tenant_preemptions_total counter",
        "# TYPE aliquot_tenant_share_ratio gauge",
    ):
        assert expected in exposed
    assert any(line.startswith("aliquot_build_info{version=") for line in exposed)


def test_metrics_have_moves_durations_and_reasons_of_memory_that_leaves() -> None:
    residency = {
        "where": "parked", "resident_bytes": 1, "parked_bytes": 2, "moves": 3, "moved_bytes": 4,
        "last_out_seconds": 0.5, "last_in_seconds": None, "why": "turn",
    }  # fmt: skip
    exposed = lines(a_status(residency=residency))
    labels = '{card="0",class="offline",tenant="train",uuid="GPU-0"'
    assert f"aliquot_tenant_moves_total{labels}}} 3.0" in exposed
    assert f"aliquot_tenant_moved_bytes_total{labels}}} 4.0" in exposed
    assert f"aliquot_tenant_move_out_seconds{labels}}} 0.5" in exposed
    assert f'aliquot_tenant_residency{labels},where="parked",why="turn"}} 1.0' in exposed
    assert not any(line.startswith("aliquot_tenant_move_in_seconds{") for line in exposed)


def test_metrics_have_the_accepted_latency_and_how_long_it_was_missed() -> None:
    names = ("aliquot_tenant_latency_accepted_seconds{", "aliquot_tenant_latency_missed_seconds_total{")
    assert not any(line.startswith(names) for line in lines(a_status())), "it did not say what it accepts"
    share = a_share(0, latency_missed_seconds=7)
    tenant = kit.a_tenant("serve", **{"class": "online"}, cards=[share], latency_seconds=0.002)
    exposed = lines(machine_status(kit.a_status(cards=[a_card("box", 0)], tenants=[tenant])))
    labels = '{card="0",class="online",tenant="serve",uuid="GPU-0"}'
    assert f"aliquot_tenant_latency_accepted_seconds{labels} 0.002" in exposed
    assert f"aliquot_tenant_latency_missed_seconds_total{labels} 7.0" in exposed


def test_metrics_leave_out_unknown_values() -> None:
    exposed = "\n".join(lines(a_status(share=None)))
    assert "aliquot_tenant_share_ratio{" not in exposed
    assert "aliquot_card_memory_used_bytes{" not in exposed


def test_metrics_escape_labels_and_use_ratios() -> None:
    assert 'aliquot_card_core_booked_ratio{card="0",model="Odd \\"model\\"\\\\",uuid="GPU-0"} 0.3' in lines(a_status())


def test_metrics_of_a_card_show_memory_that_nothing_limits() -> None:
    assert [line for line in lines(a_status()) if line.startswith("aliquot_card_memory_unregistered_bytes{")] == [
        'aliquot_card_memory_unregistered_bytes{card="0",model="Odd \\"model\\"\\\\",uuid="GPU-0"} 7.0'
    ]


def test_scrape_leaks_no_memory() -> None:
    lines(a_status())  # the first loads what it needs
    assert left_behind(lambda: [lines(a_status()) for _ in range(20)]) < 20
