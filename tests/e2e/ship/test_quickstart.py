"""docs/quickstart-kubernetes.md: its commands run as they are written, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from testbed.cluster import Cluster

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "quickstart-kubernetes.md").read_text()
PATIENCE = 90.0  # seconds; not a promise, the machine may be busy
ASKING = ("kubectl get", "kubectl aliquot", "kubectl exec -n")  # asked again until all have started

_VARIABLE = (  # what differs from run to run
    (r"-[0-9a-f]{5,10}-[a-z0-9]{5}(?![a-z0-9])", "-POD"),
    (r"\d+(\.\d+){3}(:\d+)?", "ADDRESS"),
    (r"\b(\d+m)?\d+s\b", "AGE"),
    (r"Kubernetes v[\d.]+|aliquot \d[\w.]+", "VERSION"),
    (r"busy \d+%, .* in use", "in use"),
)


def _session() -> list[tuple[str, str]]:
    """The ten commands, each with the output that the page shows."""
    blocks = re.findall(r"^```console\n\$ ([^\n]+)\n(.*?)```", PAGE.partition("## The ten commands")[2], re.M | re.S)
    assert len(blocks) == 10
    return blocks


def _comparable(command: str, text: str) -> list[str]:
    for pattern, name in _VARIABLE:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if command.endswith("aliquot top"):  # who is on the card: all else is measured, and so is the order
        return sorted(line.split()[0] for line in lines if line.startswith("default/"))
    return lines


def _agree(shown: list[str], printed: list[str]) -> bool:
    """Whether these lines were printed; `...` on the page stands for any others."""
    if "..." not in shown:
        return shown == printed
    rest = iter(printed)
    return all(line in rest for line in shown if line != "...")


def test_quick_start_page_shows_what_its_ten_commands_print(bare: Cluster) -> None:
    environment = {**bare.environment, "IMAGE": bare.image, "KUBE_SCHEDULER": bare.kube_scheduler_image}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

    def run(command: str) -> str:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        ).stdout

    for command, shown in _session():
        wanted, printed = _comparable(command, shown), run(command)
        deadline = time.monotonic() + PATIENCE
        while not _agree(wanted, _comparable(command, printed)):
            again = command.startswith(ASKING) and time.monotonic() < deadline
            assert again, f"$ {command}\n{printed}\nthe page shows:\n{shown}"
            time.sleep(1)
            printed = run(command)
        print(f"$ {command}\n{printed}")  # for the page, where a command prints something else now
