"""A fake API server: records calls, and refuses what a test wants refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from aliquot.adapters.kubernetes.kube import ApiError, Kube

Json = dict[str, Any]


class Clock:
    """Seconds since 1970, advanced by the test."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Api:
    """Objects by path. `refuse` is called first: an error that it returns is the answer."""

    objects: dict[str, Json] = field(default_factory=dict)
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    refuse: Callable[[str, str], Exception | None] = lambda verb, path: None

    @property
    def kube(self) -> Kube:
        return cast(Kube, self)

    def sent(self, verb: str) -> list[tuple[str, Any]]:
        """Path and body of the calls of that verb."""
        return [(path, body) for said, path, body in self.calls if said == verb]

    async def get(self, path: str, **_: object) -> Json:
        self._asked("get", path, None)
        return copy.deepcopy(self._at(path))

    async def create(self, path: str, body: Json, **_: object) -> Json:
        self._asked("create", path, body)
        where = f"{path}/{body['metadata']['name']}"
        if where in self.objects:
            raise ApiError(409, "AlreadyExists", where)
        return self._put(where, body)

    async def replace(self, path: str, body: Json, **_: object) -> Json:
        self._asked("replace", path, body)
        if body["metadata"].get("resourceVersion") != self._at(path)["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", path)
        return self._put(path, body)

    async def patch(
        self, path: str, body: Json, *, form: str = "merge", params: Mapping[str, str] | None = None, **_: object
    ) -> Json:
        self._asked("patch", path, body)
        if form == "apply":
            if path in self.objects and "force" not in (params or {}):  # nothing that others wrote is changed
                return self._put(path, _merged(body, self.objects[path], by_type=False))
            return self._put(path, body)
        whole = self._at(path.removesuffix("/status"))
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != whole["metadata"].get("resourceVersion"):
            raise ApiError(409, "Conflict", path)
        changed = _merged(whole, body, by_type=form == "strategic")
        return self._put(path.removesuffix("/status"), changed)

    def _asked(self, verb: str, path: str, body: Any) -> None:
        self.calls.append((verb, path, copy.deepcopy(body)))
        error = self.refuse(verb, path)
        if error is not None:
            raise error

    def _at(self, path: str) -> Json:
        if path not in self.objects:
            raise ApiError(404, "NotFound", path, {"name": path.rpartition("/")[2]})
        return self.objects[path]

    def _put(self, path: str, body: Json) -> Json:
        whole = copy.deepcopy(body)
        whole["metadata"]["resourceVersion"] = str(len(self.calls))
        self.objects[path] = whole
        return copy.deepcopy(whole)


def _merged(whole: Any, change: Any, *, by_type: bool) -> Any:
    if isinstance(whole, dict) and isinstance(change, dict):
        merged = {**whole, **{key: _merged(whole.get(key), value, by_type=by_type) for key, value in change.items()}}
        return {key: value for key, value in merged.items() if value is not None}
    if by_type and isinstance(whole, list) and isinstance(change, list):
        given = {condition["type"] for condition in change}
        return [condition for condition in whole if condition["type"] not in given] + change
    return change


def forbidden(verb: str = "", inside: str = "") -> Callable[[str, str], Exception | None]:
    """403 for that verb (or any) on paths that contain `inside`."""

    def refuse(said: str, path: str) -> Exception | None:
        if verb in ("", said) and inside in path:
            return ApiError(403, "Forbidden", f"cannot {said} {path}")
        return None

    return refuse
