"""CDI specs for container runtimes: how they are written and read back."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.cdi import (
    CdiName,
    Edits,
    Mount,
    Spec,
    driver_edits,
    is_silent,
    name_of,
    parse_spec,
    passes_cdi,
    reads_cdi,
    render_spec,
)
from kit.values.anyjson import any_json, atoms

# The rules of the CDI library (pkg/parser), for kinds that it takes at version 0.5.0: there no dots in a class.
KIND = re.compile(r"aliquot\.dev/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]")
DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

MOUNTS = (Mount("/var/lib/aliquot/shim/1/libaliquot.so", "/usr/local/lib/aliquot/libaliquot.so"),)
PAGE = Mount("/run/aliquot/t/u/page", "/run/aliquot/page", writable=True)
EDITS = Edits({"T9K_GPU_PERCENT": "30", "NVIDIA_VISIBLE_DEVICES": "GPU-0"}, (*MOUNTS, PAGE), ("/dev/nvidia0",))
SPEC = Spec(CdiName("aliquot.dev/qgpu-core", "3f2a"), EDITS, "5c1f", "ml", "train-0", "main")


def body(spec: Spec = SPEC) -> dict[str, object]:
    found = yaml.safe_load(render_spec(spec))
    assert isinstance(found, dict)
    return found


# --- names -----------------------------------------------------------------------------------------------------------


def test_device_name_ignores_device_order() -> None:
    assert name_of("x.io/qgpu-core", ["b", "a"]) == name_of("x.io/qgpu-core", {"a", "b"})


def test_device_names_differ_by_devices_and_resource() -> None:
    names = [
        name_of("x.io/qgpu-core", ["a", "b"]),
        name_of("x.io/qgpu-core", ["a"]),
        name_of("x.io/qgpu-core", ["ab"]),
        name_of("y.io/qgpu-core", ["a", "b"]),
    ]
    assert len({name.device for name in names}) == len(names)


def test_device_name_contains_resource() -> None:
    name = name_of("tke.cloud.tencent.com/qgpu-core", ["a"])
    assert name.qualified == f"aliquot.dev/qgpu-core={name.device}"
    assert name.file == f"aliquot.dev-qgpu-core-{name.device}.yaml"


def test_cdi_class_has_no_dots() -> None:
    assert name_of("x.io/gpu.shared", ["a"]).kind == "aliquot.dev/gpu-shared"


def test_cdi_class_has_two_characters_for_containerd() -> None:
    assert name_of("x.io/g", ["a"]).kind == "aliquot.dev/gpu-g"


@given(st.text(), st.lists(st.text()))
def test_device_names_are_valid_cdi(resource: str, ids: list[str]) -> None:
    name = name_of(resource.encode(errors="replace").decode(), [id_.encode(errors="replace").decode() for id_ in ids])
    assert KIND.fullmatch(name.kind)
    assert DEVICE.fullmatch(name.device)
    assert "/" not in name.file


# --- files -----------------------------------------------------------------------------------------------------------


def test_spec_file_has_one_device_with_edits() -> None:
    assert body() == {
        "cdiVersion": "0.5.0",
        "kind": "aliquot.dev/qgpu-core",
        "devices": [
            {
                "name": "3f2a",
                "containerEdits": {
                    "env": ["NVIDIA_VISIBLE_DEVICES=GPU-0", "T9K_GPU_PERCENT=30"],
                    "deviceNodes": [{"path": "/dev/nvidia0"}],
                    "mounts": [
                        {
                            "hostPath": "/var/lib/aliquot/shim/1/libaliquot.so",
                            "containerPath": "/usr/local/lib/aliquot/libaliquot.so",
                            "options": ["ro", "bind", "nosuid", "nodev"],
                        },
                        {
                            "hostPath": "/run/aliquot/t/u/page",
                            "containerPath": "/run/aliquot/page",
                            "options": ["rw", "bind", "nosuid", "nodev", "noexec"],
                        },
                    ],
                },
            }
        ],
    }


def test_spec_owner_is_in_a_comment_old_runtimes_ignore() -> None:
    first, second, *rest = render_spec(SPEC).decode().splitlines()
    assert first.startswith("# aliquot ")
    assert json.loads(first.removeprefix("# aliquot ")) == {
        "v": 1,
        "uid": "5c1f",
        "namespace": "ml",
        "pod": "train-0",
        "container": "main",
    }
    assert json.loads(second) == body()
    assert rest == []


def test_spec_ignores_environment_order() -> None:
    turned = Edits(dict(reversed(list(EDITS.env.items()))), EDITS.mounts, EDITS.devices)
    assert render_spec(Spec(SPEC.name, turned, "5c1f", "ml", "train-0", "main")) == render_spec(SPEC)


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = WORDS.map(lambda word: word.replace("=", "")).filter(bool)
EDITS_OF_ALL_KINDS = st.builds(
    Edits,
    env=st.dictionaries(KEYS, WORDS, max_size=3),
    mounts=st.lists(st.builds(Mount, WORDS, WORDS, st.booleans()), max_size=3).map(tuple),
    devices=st.lists(WORDS, max_size=2).map(tuple),
    extra=st.dictionaries(WORDS, st.lists(WORDS), max_size=2),
    version=st.sampled_from(["0.5.0", "0.7.0"]),
)
SPECS = st.builds(
    Spec,
    name=st.builds(name_of, WORDS, st.lists(WORDS, max_size=3)),
    edits=EDITS_OF_ALL_KINDS,
    pod_uid=WORDS,
    namespace=WORDS,
    pod=WORDS,
    container=WORDS,
)


@given(SPECS)
def test_rendered_spec_parses_back(spec: Spec) -> None:
    assert parse_spec(render_spec(spec)) == spec


@pytest.mark.parametrize("device", ["", "../../x", "a/b", "a\0", "x" * 200])
def test_device_name_cannot_escape_folder(device: str) -> None:
    """The file of that name is removed with its Pod."""
    assert parse_spec(render_spec(Spec(CdiName("aliquot.dev/qgpu-core", device), EDITS, "u", "ml", "p", "c"))) is None
    assert parse_spec(render_spec(Spec(CdiName(f"aliquot.dev/{device}", "3f2a"), EDITS, "u", "ml", "p", "c"))) is None


@given(SPECS)
def test_spec_reads_the_same_as_yaml_and_json(spec: Spec) -> None:
    data = render_spec(spec)
    assert yaml.safe_load(data) == json.loads(data.partition(b"\n")[2])


@pytest.mark.parametrize(
    "character", ["\x7f", "\x85", "\xa0", "\u2028", "\u2029", "\ufeff", "\uffff", "é", "\U0001f600"]
)
def test_spec_survives_yaml_special_characters(character: str) -> None:
    spec = Spec(SPEC.name, Edits({"A": f"a {character} b"}), character, "ml", "train-0", "main")
    assert parse_spec(render_spec(spec)) == spec
    assert yaml.safe_load(render_spec(spec))["devices"][0]["containerEdits"]["env"] == [f"A=a {character} b"]


def test_foreign_spec_is_not_ours() -> None:
    assert parse_spec(b'{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[]}') is None
    assert parse_spec(render_spec(SPEC).replace(b"aliquot.dev/", b"nvidia.com/")) is None


def test_spec_of_later_version_is_ignored() -> None:
    assert parse_spec(render_spec(SPEC).replace(b'"v": 1', b'"v": 2')) is None


@given(st.binary())
def test_parse_spec_accepts_any_bytes(data: bytes) -> None:
    assert parse_spec(data) is None


@given(st.integers(0, 600), st.binary(max_size=3))
def test_parse_spec_accepts_damaged_specs(at: int, damage: bytes) -> None:
    data = render_spec(SPEC)
    found = parse_spec(data[:at] + damage + data[at + len(damage) :])
    assert found is None or isinstance(found, Spec)


def test_parse_spec_rejects_deep_json() -> None:
    head = render_spec(SPEC).partition(b"\n")[0]
    assert parse_spec(head + b"\n" + b'{"containerEdits":' * 100_000) is None


# --- runtimes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["containerd://2.1.4", "containerd://v2.0.0-rc.1", "cri-o://1.31.0"])
def test_runtime_supports_cdi_by_default(runtime: str) -> None:
    assert reads_cdi(runtime)


@pytest.mark.parametrize(
    "runtime",
    [
        "containerd://1.7.27",
        "docker://26.1.0",
        "containerd",
        "containerd://",
        "",
        "containerd://\u00b2.0",
        "cri-o://" + "9" * 5000,
    ],
)
def test_unknown_runtime_counts_as_without_cdi(runtime: str) -> None:
    assert not reads_cdi(runtime)


def test_silent_runtime_is_taken_from_kubelet() -> None:
    assert is_silent("containerd://Unknown")
    assert not is_silent("containerd://2.1.4")


@pytest.mark.parametrize("kubelet", ["v1.29.0", "v1.31.2+k3s1", "v1.36.0-rc.0", "1.30.1-gke.100", "v2.0.0"])
def test_kubelet_passes_cdi_devices_of_plugins(kubelet: str) -> None:
    assert passes_cdi(kubelet)


@pytest.mark.parametrize("kubelet", ["v1.28.15", "v1.9.0", "", "unknown", "v1"])
def test_kubelet_that_may_drop_cdi_devices_does_not_count(kubelet: str) -> None:
    assert not passes_cdi(kubelet)


# --- the driver's own file -------------------------------------------------------------------------------------------


def card(name: str, number: int) -> dict[str, object]:
    nodes = [{"path": f"/dev/nvidia{number}", "hostPath": f"/dev/nvidia{number}"}, {"path": "/dev/dri/shared"}]
    return {"name": name, "containerEdits": {"deviceNodes": nodes}}


def nvidia(*devices: dict[str, object], version: str = "0.5.0", **more: object) -> dict[str, object]:
    hooks = [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook"]}]
    common = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{"path": "/dev/nvidiactl"}], "hooks": hooks}
    whole = {"cdiVersion": version, "kind": "nvidia.com/gpu", "devices": list(devices), "containerEdits": common}
    return {**whole, **more}


def test_driver_edits_cover_common_and_granted_cards() -> None:
    edits = driver_edits(nvidia(card("GPU-0", 0), card("GPU-1", 1), card("GPU-2", 2)), ["GPU-0", "GPU-2"])
    assert edits is not None
    assert [node["path"] for node in edits.extra["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/dri/shared",
        "/dev/nvidia2",
    ]
    assert [hook["path"] for hook in edits.extra["hooks"]] == ["/usr/bin/nvidia-ctk"]
    assert edits.extra["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_own_edits_follow_driver_edits() -> None:
    driver = driver_edits(nvidia(card("GPU-0", 0)), ["GPU-0"])
    assert driver is not None
    edits = Edits(EDITS.env, EDITS.mounts, extra=driver.extra, version=driver.version)
    found = body(Spec(SPEC.name, edits, "5c1f", "ml", "train-0", "main"))
    assert found["containerEdits"] == driver.extra  # the file's, which come before the device's
    assert "NVIDIA_VISIBLE_DEVICES=GPU-0" in str(found["devices"])


def test_driver_spec_card_is_found_by_index_without_uuids() -> None:
    edits = driver_edits(nvidia(card("0", 0), card("1", 1)), ["GPU-b"], indices={"GPU-a": 0, "GPU-b": 1})
    assert edits is not None
    assert {"path": "/dev/nvidia1", "hostPath": "/dev/nvidia1"} in edits.extra["deviceNodes"]


def test_driver_spec_prefers_uuid_over_index() -> None:
    edits = driver_edits(nvidia(card("0", 0), card("GPU-a", 1)), ["GPU-a"], indices={"GPU-a": 0})
    assert edits is not None
    assert {"path": "/dev/nvidia0", "hostPath": "/dev/nvidia0"} not in edits.extra["deviceNodes"]


def test_driver_spec_with_missing_cards_is_unusable() -> None:
    assert driver_edits(nvidia(card("GPU-0", 0)), ["GPU-0", "GPU-1"]) is None
    assert driver_edits(nvidia(card("0", 0)), ["GPU-1"], indices={"GPU-0": 0}) is None


def test_spec_version_covers_driver_edits() -> None:
    for theirs, expected in (("0.3.0", "0.5.0"), ("0.7.0", "0.7.0"), ("0.10.0", "0.10.0")):
        edits = driver_edits(nvidia(card("GPU-0", 0), version=theirs), ["GPU-0"])
        assert edits is not None
        assert edits.version == expected


@given(
    any_json(atoms | st.dates() | st.binary(), st.text() | st.integers(), leaves=100),
    st.sampled_from(["", "cdiVersion", "kind", "devices", "containerEdits", "name"]),
)
def test_driver_edits_accept_any_yaml(value: object, field: str) -> None:
    spec: object = {**nvidia(card("GPU-0", 0)), field: value} if field else value
    if field == "name":
        spec = nvidia({"name": value, "containerEdits": value})
    edits = driver_edits(spec, ["GPU-0"])
    if edits is not None:
        assert parse_spec(render_spec(Spec(SPEC.name, edits, "", "", "", ""))) is not None


def test_driver_edits_reject_recursive_yaml() -> None:
    assert driver_edits(yaml.safe_load("&a {kind: nvidia.com/gpu, devices: [*a]}"), []) is None
