"""Runs shim/build.py when the package is built or installed, so that src/aliquot/lib is there and in the wheel.

The wheel then holds machine code and says so in its tag. Another machine's wheel: ALIQUOT_ARCH=aarch64.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc, type-arg, unused-ignore]
    """The name that hatchling looks for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before files are collected. An editable install is for this machine; a wheel may be for another."""
        path = Path(self.root) / "shim" / "build.py"
        spec = importlib.util.spec_from_file_location("aliquot_shim_build", path)
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = build
        spec.loader.exec_module(build)
        arch = platform.machine() if version == "editable" else os.environ.get("ALIQUOT_ARCH", platform.machine())
        try:
            made = build.build_all(arch=arch, quiet=True)
        except build.BuildError as error:
            raise SystemExit(f"cannot build the shim: {error}") from error
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{arch}"
        folder = Path(os.path.commonpath([str(library.parent) for library in made]))
        for library in made:
            build_data["force_include"][str(library)] = f"aliquot/lib/{library.relative_to(folder)}"
        build_data["force_include"][str(Path(self.root) / "deploy" / "install.yaml")] = "aliquot/manifests/install.yaml"
