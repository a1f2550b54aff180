"""Why a Pod is not ours to place: what it asks of another product for, and how it would ask Aliquot for the same."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.dialects import gpushare, hami, kai, native, qgpu, t9k
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.dialects.rules import Rules
from aliquot.dialects.wire.otherplugins import is_other_resource
from aliquot.model.decoding.openjson import JsonView

_OURS = frozenset({*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, *hami.RESOURCES, native.PLACE})
_MOST_NAMES = 3
_NONE = (0, "0")  # asks for nothing
_NOT_OURS = "Aliquot does not place it"
_MIG = "nvidia.com/mig-"
_OF_HAMI = "nvidia.com/gpu with gpumem and gpucores, as in HAMi, asks it for the same (docs/dialects.md)"
_OF_CLAIMS = "it serves claims of its own DeviceClasses (docs/dra.md)"


def why_not_ours(manifest: JsonView, rules: Rules) -> str:
    """Of a Pod without a request in a dialect that is served. Never raises on any JSON."""
    spec = mapping(manifest.get("spec"))
    names = sorted({name for name in _resources(spec) if is_other_resource(name)})
    if names:
        return f"requests {_listed(names)}, which another device plugin serves: {_NOT_OURS}; {_instead(names, rules)}"
    marks = sorted(set(mapping(mapping(manifest.get("metadata")).get("annotations"))) & set(kai.ANNOTATIONS))
    if marks and kai.DIALECT not in rules.served:
        return f"has the annotation {_listed(marks)}, which is KAI's: {_NOT_OURS} unless its mode has kai"
    if sequence(spec.get("resourceClaims")):
        return f"asks by ResourceClaims, which a DRA driver serves: {_NOT_OURS}; {_OF_CLAIMS}"
    return f"requests no GPU in any of the dialects: {_NOT_OURS}"


def other_resources(spec: JsonView) -> list[str]:
    """What a Pod with this spec requests beside cards, CPU and memory, which others hand out."""
    return sorted({name for name in _resources(spec) if "/" in name and name not in _OURS})


def _instead(names: list[str], rules: Rules) -> str:
    if all(name.startswith(_MIG) for name in names):
        return "to share cards without MIG, ask in one of its dialects (docs/dialects.md)"
    if hami.DIALECT not in rules.served and all(name in hami.RESOURCES for name in names):
        return "it would in mode hami or all+hami"
    return _OF_HAMI


def _resources(spec: JsonView) -> Iterator[str]:
    for key in ("containers", "initContainers"):
        for container in map(mapping, sequence(spec.get(key))):
            resources = mapping(container.get("resources"))
            for side in ("limits", "requests"):
                amounts = mapping(resources.get(side)).items()
                yield from (name for name, amount in amounts if isinstance(name, str) and amount not in _NONE)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"
