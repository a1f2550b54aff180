"""`python -m aliquot`, and the entry point of the command: `run` goes its own short way, without click."""

from __future__ import annotations

import os
import sys

# Commands that hold processes and secrets by file descriptors of the kernel.
_NEED_LINUX = ("run", "demo", "probe", "up", "agent", "scheduler")


def main() -> None:
    """Every way out has its exit code, and none is a traceback."""
    try:
        _main()
    except KeyboardInterrupt:  # while modules are imported; later the commands catch it
        sys.exit(130)


def _check_python(command: str) -> None:
    """Older Pythons of uv and conda were built for a Linux without these functions, whatever Linux they run on."""
    lacking = [name for name in ("pidfd_open", "memfd_create") if not hasattr(os, name)]
    if command in _NEED_LINUX and lacking:
        missing = " and ".join(f"os.{name}" for name in lacking)
        sys.stderr.write(
            f"aliquot: `aliquot {command}` needs {missing}, which this Python lacks ({sys.executable}): install Aliquot"
            " with your distribution's python3, or with a newer Python of uv or conda\n"
        )
        sys.exit(2)


def _main() -> None:
    _check_python("".join(sys.argv[1:2]))
    if sys.argv[1:2] == ["run"]:
        from aliquot.cli.run.command import main as run

        sys.exit(run(sys.argv[2:]))
    if sys.argv[1:2] == ["by-environment"] or (sys.argv[1:2] and sys.argv[1].startswith("-")):  # in a container
        from aliquot.cli.cluster import entrypoint

        if entrypoint.is_unnamed(sys.argv[1:]):
            sys.argv[1:] = entrypoint.unnamed_words(sys.argv[1:])
    from aliquot.cli.main import main as others

    others()


def qgpu_scheduler() -> None:
    """`qgpu-scheduler`, as the vendor's manifests call it: `aliquot scheduler`."""
    sys.argv[1:1] = ["scheduler", "--drop-in"]
    main()


def qgpu_manager() -> None:
    """`qgpu-manager`, as the vendor's manifests call it: `aliquot agent`."""
    sys.argv.insert(1, "agent")
    main()


def gpushare_extender() -> None:
    """`gpushare-sche-extender`, as gpushare calls its own: `aliquot scheduler`."""
    from aliquot.cli.cluster.entrypoint import extender_words

    sys.argv[1:] = extender_words(sys.argv[1:])
    main()


def gpushare_device_plugin() -> None:
    """`gpushare-device-plugin-v2`, likewise: `aliquot agent`."""
    from aliquot.cli.cluster.entrypoint import plugin_words

    sys.argv[1:] = plugin_words(sys.argv[1:])
    main()


if __name__ == "__main__":
    main()
