"""Two vLLM on one card with c + c concurrent requests, as HAMi's public benchmark measures it, and in its columns.

https://github.com/Project-HAMi/gpu-sharing-benchmarks has two cards of two instances each, so two of its columns have
other names here: `successful_requests` for those across its two cards, `compute_limit_pct` for HAMi's limit.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu.engines import figures
from bench.gpu.engines.catalog import ENGINES
from bench.gpu.engines.figures import Request
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.player import Player, let_end
from bench.gpu.engines.scenes import SETTLE, Measure, length, start
from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Window, window

EACH = (1, 2, 4, 8, 16)
PROMPT, TOKENS = 1024, 128
COLUMNS = (
    "configuration",
    "mode",
    "total_concurrency_per_gpu",
    "concurrency_per_instance",
    "measurement_date_utc",
    "trials",
    "successful_requests",
    "prefix_cache_read_pct",
    "tps_per_gpu",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "e2e_p50_ms",
    "e2e_p99_ms",
    "compute_limit_pct",
    "common_wall_tps_per_gpu",
    "all_workers_overlap_fraction",
)
Line = dict[str, Any]


def measured(mode: str) -> Measure:
    """`mode`: Graph or Eager."""
    return partial(_measure, mode)


def _measure(mode: str, lab: Lab, folder: Folder) -> list[Row]:
    rows = []
    lines: list[Line] = []
    for name, group in (("Aliquot pair", None), ("Aliquot pair in a group", "engines")):
        with lab.node() as node:
            lines += _lines(name, mode, group, lab, folder, node)
    with ExitStack() as stack:
        if "stock" in lab.grounds:
            lines += _lines("Native pair", mode, None, lab, folder, lab.stock)
        if "mps" in lab.grounds and (mps := stack.enter_context(lab.mps())):
            lines += _lines("Native pair under MPS", mode, None, lab, folder, mps)
    path = lab.out / "engines.csv"
    write(path, lines)
    for line in lines:
        each = line["concurrency_per_instance"]
        rows.append(
            Row(
                what=f"{line['configuration']}, {mode}, {each} + {each} requests: tok/s; TTFT; TPOT p50/p99",
                must="",
                measured=f"{line['tps_per_gpu']}; {_both(line, 'ttft')}; {_both(line, 'tpot')} ms",
                ok=None,
                numbers={**line, "csv": str(path)},
            )
        )
    return rows


def _both(line: Line, what: str) -> str:
    return f"{line[f'{what}_p50_ms']}/{line[f'{what}_p99_ms']}"


def _lines(name: str, mode: str, group: str | None, lab: Lab, folder: Folder, ground: Ground) -> Iterator[Line]:
    """One pair of engines, at each concurrency."""
    more = () if mode == "Graph" or lab.simulate else ("--eager",)
    with lab.stage(ground) as stage:
        players = start(
            stage,
            *(
                partial(Player, stage, folder, ENGINES["vllm"], f"vllm-{at}", core=50, group=group, more=more)
                for at in range(2)
            ),
        )
        for each in EACH:
            for player in players:
                player.say(f"run clients={each} tokens={TOKENS} prompt={PROMPT}")
            time.sleep(SETTLE if lab.simulate is None else 0.3)
            over = window(length(lab))
            let_end(*players)
            yield line(name, mode, each, over, [player.requests(over) for player in players])


def line(name: str, mode: str, each: int, over: Window, answered: Sequence[Sequence[Request]]) -> Line:
    """In the columns: requests that began in the window, and tokens that came in it."""
    every = [request for requests in answered for request in requests]
    came = sum(over.begin <= moment < over.end for request in every for moment in request.moments)
    begins = [min((request.due for request in requests), default=over.end) for requests in answered]
    ends = [max((request.moments[-1] for request in requests), default=over.begin) for requests in answered]
    wall = max(max(ends) - min(begins), 1e-9)
    quantiles = {
        "ttft": figures.quantiles(request.first_ms for request in every),
        "tpot": figures.quantiles(request.tpot_ms for request in every if request.tpot_ms is not None),
        "e2e": figures.quantiles(request.all_ms for request in every),
    }
    return {
        "configuration": name,
        "mode": mode,
        "total_concurrency_per_gpu": each * len(answered),
        "concurrency_per_instance": each,
        "measurement_date_utc": time.strftime("%Y-%m-%d", time.gmtime()),
        "trials": 1,
        "successful_requests": len(every),
        "prefix_cache_read_pct": 0.0,  # it is switched off
        "tps_per_gpu": round(came / over.seconds, 1),
        "compute_limit_pct": "",
        "common_wall_tps_per_gpu": round(sum(len(request.moments) for request in every) / wall, 1),
        "all_workers_overlap_fraction": round(max(0.0, min(ends) - max(begins)) / wall, 4),
        **{
            f"{what}_{part}_ms": None if found is None else found[part]
            for what, found in quantiles.items()
            for part in ("p50", "p99")
        },
    }


def write(path: Path, lines: Sequence[Line]) -> None:
    """Added to what is there: modes are measured one by one."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerows(lines)
