"""`python -m aliquot`, and the entry point of the command: `run` goes its own short way, without click."""

from __future__ import annotations

import sys


def main() -> None:
    """Every way out has its exit code, and none is a traceback."""
    if sys.argv[1:2] == ["run"]:
        from aliquot.cli.run import main as run

        sys.exit(run(sys.argv[2:]))
    from aliquot.cli.main import main as others

    others()


def qgpu_scheduler() -> None:
    """`qgpu-scheduler`, as the vendor's manifests call it: `aliquot scheduler`."""
    sys.argv.insert(1, "scheduler")
    main()


def qgpu_manager() -> None:
    """`qgpu-manager`, as the vendor's manifests call it: `aliquot agent`."""
    sys.argv.insert(1, "agent")
    main()


if __name__ == "__main__":
    main()
