"""The image as an OCI archive, without a container engine and without root: `python deploy/image/build.py --help`."""

from __future__ import annotations

import sys

from imagebuild.main import main

if __name__ == "__main__":
    sys.exit(main())
