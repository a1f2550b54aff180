"""Everything of a release, into dist/: `python deploy/image/release.py --help`, or `make release`."""

from __future__ import annotations

import sys

from imagebuild.release import main

if __name__ == "__main__":
    sys.exit(main())
