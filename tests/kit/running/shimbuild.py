"""shim/build.py, which is a script and no module of the package."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def shim_build() -> ModuleType:
    """shim/build.py as a module."""
    spec = importlib.util.spec_from_file_location("aliquot_shim_build", ROOT / "shim" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
