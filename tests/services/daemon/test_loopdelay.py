"""The delay of the event loop, as /metrics shows it."""

from __future__ import annotations

import asyncio
import time

from aliquot.services.daemon.loopdelay import LoopDelay
from aliquot.services.daemon.metrics import expose


def test_loop_delay_shows_what_blocked_the_loop() -> None:
    async def act() -> LoopDelay:
        delay = LoopDelay()
        measuring = asyncio.create_task(delay.run())
        await asyncio.sleep(0)
        time.sleep(0.4)  # blocks, as nothing in a daemon may
        async with asyncio.timeout(60):
            while not delay.largest():
                await asyncio.sleep(0.01)
        measuring.cancel()
        return delay

    assert asyncio.run(act()).largest() >= 0.25


def test_largest_loop_delay_is_forgotten_after_a_minute() -> None:
    delay = LoopDelay()
    for delayed, now in ((0.5, 0.0), (0.2, 30.0), (0.1, 31.0), (0.0, 55.0)):
        delay.add(delayed, now)
    assert delay.largest() == 0.5
    delay.add(0.0, 61.0)
    assert delay.largest() == 0.2
    delay.add(0.0, 95.0)
    assert delay.largest() == 0.0
    lines = expose(delay.families()).decode().splitlines()
    assert 'aliquot_loop_delay_seconds_bucket{le="0.25"} 5.0' in lines
    assert "aliquot_loop_delay_seconds_count 6.0" in lines
