"""The archives of several architectures as one: `python deploy/image/join.py --help`, or `make images`."""

from __future__ import annotations

import sys

from imagebuild.index import main

if __name__ == "__main__":
    sys.exit(main())
