"""The chart as one file: deploy/install.yaml, for those without Helm; in the wheel too, for `aliquot uninstall`.

`make chart` runs it. HELM names the program; without it a Helm 4 in PATH is taken, or the one that the tests built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHART = HERE / "aliquot"
ROOT = HERE.parent.parent
RENDERED = ROOT / "deploy" / "install.yaml"

NAMESPACE = "aliquot-system"
KUBERNETES = "1.36"
HEAD = """\
# Aliquot {version}, as `helm template` renders deploy/chart/aliquot with its defaults. `make chart` wrote it.
#
#   kubectl apply --server-side -f install.yaml
#
# Before that: images are named without a registry; put yours before aliquot/aliquot, and name a kube-scheduler of your
# cluster's own version. Where Prometheus' operator is not installed, kubectl says that it does not know ServiceMonitor,
# PodMonitor and PrometheusRule, and applies the rest. `aliquot uninstall` removes it, also from the nodes.
"""


def find_helm() -> str:
    """The program, of Helm 4: 3 makes the same objects in another order. Ends with what to do where there is none."""
    named = os.environ.get("HELM")
    found = named or shutil.which("helm")
    if found and _version(found).startswith("v4."):
        return found
    if named:
        sys.exit(f"HELM is {named!r}, which says it is {_version(named)}: helm 4 is needed")
    sys.path.insert(0, str(ROOT / "tests"))
    from testbed.build import CannotBuildError, binaries

    try:
        return str(binaries(("helm",))["helm"])
    except CannotBuildError as error:
        sys.exit(f"helm 4 is needed: name it in HELM ({error})")


def _version(helm: str) -> str:
    try:
        asked = subprocess.run([helm, "version", "--short"], capture_output=True, text=True, check=False)  # noqa: S603  # the one that was named
    except OSError as error:
        return str(error)
    return asked.stdout.strip() or asked.stderr.strip()


def example_image() -> str:
    """The image that the comment in values.yaml gives as an example: what the file has in its place."""
    found = re.search(r"for example (kube-scheduler:v[\d.]+)", (CHART / "values.yaml").read_text())
    assert found, "values.yaml gives no example of kubeScheduler.image"
    return found[1]


def render(helm: str, *more: str) -> str:
    """The whole file; `more` are words for helm, after ours."""
    words = ["template", "aliquot", str(CHART), f"--namespace={NAMESPACE}", "--no-hooks"]
    words += [f"--kube-version={KUBERNETES}", "--api-versions=monitoring.coreos.com/v1"]
    words += ["--set=namespace.create=true", f"--set=kubeScheduler.image={example_image()}", *more]
    made = subprocess.run([helm, *words], capture_output=True, text=True, check=False)  # noqa: S603  # our own words
    if made.returncode:
        sys.exit(made.stderr.strip())
    # Helm does not manage what is made of this; where the objects came from does not matter.
    text = made.stdout.replace("managed-by: Helm", "managed-by: aliquot")
    text = re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)
    version = re.search(r"^appVersion: (\S+)", (CHART / "Chart.yaml").read_text(), re.MULTILINE)
    assert version, "Chart.yaml has no appVersion"
    return HEAD.format(version=version[1]) + re.sub(r"\n{2,}---", "\n---", text)


def main() -> None:
    helm = find_helm()
    lint = [helm, "lint", "--strict", "--quiet", str(CHART), "--set=kubeScheduler.image=x"]
    subprocess.run(lint, check=True)  # noqa: S603  # likewise
    text = render(helm)
    RENDERED.write_text(text)
    print(RENDERED.relative_to(ROOT))


if __name__ == "__main__":
    main()
