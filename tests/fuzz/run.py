"""`make fuzz`: every target for so many seconds, with fresh inputs each time, and one line for each.

python tests/fuzz/run.py [--seconds 60] [--from CHANCE] [TARGET ...]
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from fuzz.every import TARGETS
from fuzz.target import MOST_MEMORY, Check, Target, TooLongError, hunt, resident

_ROUND = 200  # inputs between two looks at the clock


def main() -> int:
    """0: nothing was found."""
    parser = argparse.ArgumentParser(description="Fuzz every parser that a stranger reaches")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument(
        "--from", dest="chance", type=int, help="begin with this chance: a round that failed says its own"
    )
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(target.name for target in TARGETS)}"
    )
    asked = parser.parse_args()
    unknown = set(asked.targets) - {target.name for target in TARGETS}
    if unknown:
        parser.error(f"no target is called {', '.join(sorted(unknown))}")
    chosen = [target for target in TARGETS if not asked.targets or target.name in asked.targets]
    chance = time.time_ns() % 10**9 if asked.chance is None else asked.chance
    failed = [
        target.name
        for at, target in enumerate(chosen, 1)
        if not _fuzzed(target, at, len(chosen), asked.seconds, chance)
    ]
    print(
        f"{len(chosen)} targets: " + (f"something was found in {', '.join(failed)}" if failed else "nothing was found")
    )
    return int(bool(failed))


def _fuzzed(target: Target, at: int, of: int, seconds: float, chance: int) -> bool:
    before, tried = resident(), 0
    with target.place() as check:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            count = min(_ROUND, 3 * target.examples)
            if not _round(target, check, count, chance + tried):
                return False
            tried += count
            grown = (resident() - before) >> 20
            if sys.stdout.isatty():
                print(f"\r{at}/{of} {target.name}: {tried:,} inputs, {left:.0f} s left ", end="", flush=True)
    print(f"\r{at}/{of} {target.name}: {tried:,} inputs, {grown} MiB grown" + " " * 20, flush=True)
    if grown > MOST_MEMORY >> 20:
        print(f"{target.name} has taken {grown} MiB")
        return False
    return True


def _round(target: Target, check: Check, count: int, chance: int) -> bool:
    try:
        hunt(target, check, examples=count, chance=chance)
    except (Exception, TooLongError):
        traceback.print_exc()
        print(f"{target.name}: found by `python tests/fuzz/run.py --from {chance} {target.name}`", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
