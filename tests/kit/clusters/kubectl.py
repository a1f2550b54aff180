"""A fake kubectl: a script that answers `get --raw` from a file, page by page, or with an error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kit.values.manifests import Json

_SCRIPT = """#!{python} -SE
import json, sys, urllib.parse
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(words) + "\\n")
answers = json.load(open({answers!r}))
flags = [word for word in words if word.startswith("--") and "=" in word]
words = [word for word in words if word not in flags]
if words[:2] == ["get", "--raw"]:
    path, _, query = words[2].partition("?")
    query = dict(urllib.parse.parse_qsl(query))
    answer = answers.get(path, 'Error from server (NotFound): the server could not find ' + path)
    if isinstance(answer, list):
        if "fieldSelector" in query:
            node = query["fieldSelector"].removeprefix("spec.nodeName=")
            answer = [each for each in answer if each["spec"].get("nodeName") == node]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", len(answer) or 1))
        more = {{"continue": str(start + limit)}} if start + limit < len(answer) else {{}}
        page = answer[start : start + limit]
        page = [{{key: value for key, value in each.items() if key != "kind"}} for each in page]
        answer = {{"kind": "List", "metadata": more, "items": page}}
elif words[0] == "config":
    print(answers.get("namespace", ""))
    sys.exit()
else:
    answer = answers.get(words[0] + " " + json.loads(sys.stdin.read())["metadata"]["name"])
if isinstance(answer, str):
    sys.exit(answer)
print(json.dumps(answer))
"""


class FakeCluster:
    """The cluster behind the fake kubectl: change `answers`, then `save`; a text is an error that kubectl prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binary = folder / "kubectl"
        self.answers: dict[str, Any] = {}
        text = _SCRIPT.format(python=sys.executable, calls=str(folder / "calls"), answers=str(folder / "answers.json"))
        self.binary.write_text(text)
        self.binary.chmod(0o755)
        self.show()

    def show(self, *objects: Json, **more: Any) -> None:
        """These Nodes, Pods and ConfigMaps; and whatever else, by path."""
        kinds: dict[str, list[Json]] = {"Node": [], "Pod": [], "ConfigMap": []}
        for item in objects:
            kinds[item["kind"]].append(item)
        self.answers = {
            "/api/v1/nodes": kinds["Node"],
            "/api/v1/pods": kinds["Pod"],
            "/api/v1/namespaces/kube-system/configmaps": kinds["ConfigMap"],
            **{f"/api/v1/nodes/{node['metadata']['name']}": node for node in kinds["Node"]},
            **more,
        }
        self.save()

    def answer(self, path: str, value: Any) -> None:
        """Add or replace an answer."""
        self.answers[path] = value
        self.save()

    def save(self) -> None:
        (self.folder / "answers.json").write_text(json.dumps(self.answers))

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of every call so far."""
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def invoked(command: object, *arguments: str) -> Result:
    """What one of our commands prints, and its exit code."""
    return CliRunner().invoke(command, arguments)  # type: ignore[arg-type]  # click's decorators hide the type
