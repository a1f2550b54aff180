"""`python -m aliquot`, and the entry point of the command: `run` goes its own short way, without click."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Every way out has its exit code, and none is a traceback."""
    if sys.argv[1:2] == ["run"]:
        from aliquot.cli.run.command import main as run

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


def gpushare_extender() -> None:
    """`gpushare-sche-extender`, as gpushare calls its own: `aliquot scheduler`."""
    from aliquot.cli.cluster.peerflags import extender_arguments

    sys.argv[1:] = ["scheduler", *extender_arguments(sys.argv[1:], os.environ)]
    main()


def gpushare_device_plugin() -> None:
    """`gpushare-device-plugin-v2`, likewise: `aliquot agent`."""
    from aliquot.cli.cluster.peerflags import plugin_arguments

    sys.argv[1:] = ["agent", *plugin_arguments(sys.argv[1:])]
    main()


if __name__ == "__main__":
    main()
