"""A fake kubectl: a script that answers `get --raw` from a file, page by page, or with an error."""

from __future__ import annotations

import ast
import json
import marshal
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kit.values.manifests import Json

# It runs a thousand times, and would take twice as long with json and urllib: so the answers are JSON already.
_SCRIPT = """#!{python} -SE
import marshal, sys
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(repr(words) + "\\n")
with open({answers!r}, "rb") as file:
    answers = marshal.load(file)
flags = [word for word in words if word.startswith("--") and "=" in word]
words = [word for word in words if word not in flags]
if words[:2] == ["get", "--raw"]:
    path, _, query = words[2].partition("?")
    if "%" in query or "+" in query:
        import urllib.parse
        query = dict(urllib.parse.parse_qsl(query))
    else:
        query = dict(part.split("=", 1) for part in query.split("&") if part)
    error, answer = answers.get(path, (True, 'Error from server (NotFound): the server could not find ' + path))
    if isinstance(answer, list):
        if "fieldSelector" in query:
            node = query["fieldSelector"].removeprefix("spec.nodeName=")
            answer = [item for item in answer if item[0] == node]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", len(answer) or 1))
        more = '{{"continue": "%d"}}' % (start + limit) if start + limit < len(answer) else "{{}}"
        page = ", ".join(item for _, item in answer[start : start + limit])
        answer = '{{"kind": "List", "metadata": ' + more + ', "items": [' + page + ']}}'
elif words[0] == "config":
    print(answers.get("namespace", (True, ""))[1])
    sys.exit()
else:
    import json
    error, answer = answers.get(words[0] + " " + json.loads(sys.stdin.read())["metadata"]["name"], (False, "null"))
if error:
    sys.exit(answer)
print(answer)
"""


def _rendered(answer: Any) -> tuple[bool, str | list[tuple[Any, str]]]:
    """Whether it is an error, and what the script prints; of a list, each object with its node."""
    if isinstance(answer, str):
        return True, answer
    if isinstance(answer, list):
        return False, [_of_list(item) for item in answer]
    return False, json.dumps(answer)


def _of_list(item: Json) -> tuple[Any, str]:
    spec = item.get("spec")
    node = spec.get("nodeName") if isinstance(spec, dict) else None
    return node, json.dumps({key: value for key, value in item.items() if key != "kind"})


class FakeCluster:
    """The cluster behind the fake kubectl: change `answers`, then `save`; a text is an error that kubectl prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binary = folder / "kubectl"
        self.answers: dict[str, Any] = {}
        text = _SCRIPT.format(python=sys.executable, calls=str(folder / "calls"), answers=str(folder / "answers"))
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
        rendered = {path: _rendered(answer) for path, answer in self.answers.items()}
        (self.folder / "answers").write_bytes(marshal.dumps(rendered))

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of every call so far."""
        file = self.folder / "calls"
        return [ast.literal_eval(line) for line in file.read_text().splitlines()] if file.exists() else []


def invoked(command: object, *arguments: str) -> Result:
    """What one of our commands prints, and its exit code."""
    return CliRunner().invoke(command, arguments)  # type: ignore[arg-type]  # click's decorators hide the type
