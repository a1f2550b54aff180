"""The browser of the tests: Debian's chromium, driven by playwright, which then fetches none of its own.

`python tests/browser/chromium.py --install` installs it where it is missing and that can be; else it says what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

# As root there is no sandbox to be had; the rest is what a browser does of its own accord, to hosts we never named.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--font-render-hinting=none",
]
PACKAGES = ["chromium", "fonts-noto-cjk"]  # without such a font the Chinese pictures are empty boxes
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """$CHROMIUM, or the first that is installed."""
    found = (os.environ.get("CHROMIUM"), *(shutil.which(name) for name in _NAMES))
    return next((path for path in found if path), None)


def install() -> str | None:
    """What keeps it from being there afterwards; None when it is there."""
    if find() is not None:
        return None
    how = f"install it (Debian: apt-get install {' '.join(PACKAGES)}), or set CHROMIUM to the browser's path"
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return f"no chromium is installed: {how}"
    quiet = [apt, "-qq", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    print(f"installing {' and '.join(PACKAGES)} with apt-get ...", flush=True)
    steps = [[*quiet, "update"], [*quiet, "install", "--yes", "--no-install-recommends", *PACKAGES]]
    wrong = _failure(steps, environment)
    if wrong is not None:  # a package's own script may stumble the first time: finish what was begun, and once more
        wrong = _failure([["dpkg", "--configure", "-a"], *steps], environment)
    if wrong is not None:
        return f"{wrong}\n{how}"
    return None if find() else f"apt-get installed no chromium: {how}"


def _failure(steps: list[list[str]], environment: dict[str, str]) -> str | None:
    """What the first step said that failed."""
    for words in steps:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{' '.join(words)} failed: {(done.stderr or done.stdout).strip()[-500:]}"
    return None


def main() -> int:
    wrong = install() if "--install" in sys.argv[1:] else None if find() else "no chromium is installed"
    print(f"error: {wrong}" if wrong else find(), file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
