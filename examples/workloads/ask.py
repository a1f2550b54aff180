"""Asks serve.py at a steady pace, and tells how long the answers took, as a client sees it. Needs nothing but Python.

python ask.py --rate 25 --seconds 30
"""

from __future__ import annotations

import argparse
import sys
import time
from http.client import HTTPConnection, HTTPException


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:8000", metavar="HOST:PORT", help="default: that of serve.py")
    parser.add_argument("--rate", type=float, default=25.0, help="requests a second (default: 25)")
    parser.add_argument("--seconds", type=float, default=30.0, help="default: 30")
    options = parser.parse_args()
    server = HTTPConnection(options.server, timeout=30)
    began = time.monotonic()
    seconds: list[float] = []
    for number in range(round(options.rate * options.seconds)):
        time.sleep(max(0.0, began + number / options.rate - time.monotonic()))
        sent = time.perf_counter()
        try:
            server.request("GET", "/predict")
            server.getresponse().read()
        except (OSError, HTTPException) as error:
            sys.exit(f"ask.py: {options.server}: {error}; is serve.py running?")
        seconds.append(time.perf_counter() - sent)
    seconds.sort()
    p50, p99 = (1000 * seconds[int(part * (len(seconds) - 1))] for part in (0.5, 0.99))
    print(f"{len(seconds)} requests: p50 {p50:.2f} ms, p99 {p99:.2f} ms, worst {1000 * seconds[-1]:.2f} ms")


if __name__ == "__main__":
    main()
