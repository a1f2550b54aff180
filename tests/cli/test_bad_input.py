"""Input that cannot be read: one line that names file, line and column, and exit code 2. Never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.main import cli
from kit.values.manifests import gpushare_node, gpushare_pod

POD = json.dumps(gpushare_pod())
NODE = json.dumps(gpushare_node())
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,786432,8,A\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np1,1000,1024,1,500,\n"


def refused(result: Result) -> str:
    """The one line of the refusal."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("aliquot: ")
    return line.removeprefix("aliquot: ")


def explain(folder: Path, pods: str | bytes, cluster: str | bytes = NODE) -> str:
    for name, content in (("pods", pods), ("cluster", cluster)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    arguments = ["explain", "-f", str(folder / "pods"), "--cluster", str(folder / "cluster")]
    return refused(CliRunner().invoke(cli, arguments)).replace(f"{folder}/", "")


def simulate(folder: Path, pods: str | bytes, nodes: str | bytes = NODES, *options: str) -> str:
    for name, content in (("pods", pods), ("nodes", nodes)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    arguments = ["simulate", "--nodes", str(folder / "nodes"), "--pods", str(folder / "pods"), *options]
    return refused(CliRunner().invoke(cli, arguments)).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "pods:1:1: has no Pod in it: a Pod, Deployment, StatefulSet or Job is wanted"),
        ("---\n# nothing\n", "pods:1:1: has no Pod in it"),
        ("kind: Service\n", "pods:1:1: has no Pod in it, only Service: "),
        ("kind: DaemonSet\n", "pods:1:1: metadata is missing"),
        ("- kind: Pod\n", "pods:1:1: the document is a list: expected a Kubernetes object"),
        ("[]", "pods:1:1: the document is a list"),
        ("just words", "pods:1:1: the document is not a mapping"),
        (f"{POD}\n---\n- 1", "pods:3:1: the document is a list"),
        ("metadata: {name: p}", "pods:1:1: kind is missing"),
        ("kind: List\nitems: 5", "pods:1:1: items is not a list"),
        ("kind: List\nitems:\n- kind: Pod\n- 7\n", "pods:1:1: items[1] is not a mapping"),
        ("kind: List\nitems:\n- kind: Pod\n- kind: Job\n  metadata: 3", "pods:5:3: metadata: 3 is not allowed"),
        ("a: b: c", "pods:1:5: not valid YAML: mapping values are not allowed"),
        ("kind: Pod\nmetadata: {name: x\n", "pods:3:1: not valid YAML: "),
        ('{"kind": "Pod",\n "spec": ', "pods:2:10: not valid YAML: "),
        ("kind: Pod\n\tx: 1", "pods:2:1: not valid YAML: a tab in the indentation: YAML is indented with spaces"),
        ("metadata:\n  name: x\nspec:\n \tx: 1", "pods:4:2: not valid YAML: a tab in the indentation"),
        (b"kind: Pod\nx: \xff\n", "pods:2:4: not valid YAML: invalid leading UTF-8 octet"),
        (b"\x7fELF\x00\x01", "pods:1:1: not valid YAML: "),
        (b"\xff\xfe\x00", "pods:1:3: not valid YAML: "),
        ("kind: Pod\nspec: *gone", 'pods:2:7: not valid YAML: unknown anchor "gone"'),
        ("kind: Pod\nspec: &s {a: [*s]}", 'pods:2:15: alias "s" refers to itself'),
        ("kind: Pod\n? [a]\n: b", "pods:2:3: a key is not a string"),
        ("kind: Pod\nspec: {}\nspec: {}", 'pods:3:1: duplicate key "spec"'),
        ("kind: Pod\nspec: {<<: 3}", "pods:2:12: the value of << is not a mapping"),
        ("kind: Pod\nspec: !!python/name:os.system x", "pods:2:7: tag "),
        ("kind: Pod\nspec: !secret {}", "pods:2:7: tag !secret is not supported"),
        ("kind: Pod\nx: " + "9" * 5000, "pods:2:4: a number has too many digits"),
        ("[" * 100_000, "pods:1:201: nested deeper than 200 levels"),
        ('{"a":' * 100_000, "pods:1:1001: nested deeper than 200 levels"),
        ("- " * 100_000, "pods:1:401: nested deeper than 200 levels"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_manifest_is_refused_with_line_and_column(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert explain(tmp_path, content).startswith(said)


def test_alias_bomb_is_refused(tmp_path: Path) -> None:
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 12)]
    assert "aliases repeat more than 100000 values" in explain(tmp_path, "kind: Pod\n" + "\n".join(bomb))


def test_manifest_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.cli.manifests._LARGEST", 1 << 20)
    (tmp_path / "zeros").symlink_to("/dev/zero")
    said = refused(CliRunner().invoke(cli, ["explain", "-f", str(tmp_path / "zeros")]))
    assert said == f"{tmp_path}/zeros: larger than 1 MiB"


def test_objects_of_a_cluster_may_be_larger_than_other_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aliquot.cli.manifests._LARGEST", 1 << 20)
    monkeypatch.setattr("aliquot.cli.manifests._LARGEST_CLUSTER", 2 << 20)
    (tmp_path / "pods").write_text(POD)
    (tmp_path / "zeros").symlink_to("/dev/zero")
    arguments = ["explain", "-f", str(tmp_path / "pods"), "--cluster", str(tmp_path / "zeros")]
    assert refused(CliRunner().invoke(cli, arguments)) == f"{tmp_path}/zeros: larger than 2 MiB"


@pytest.mark.parametrize("source", ["-", "file"])
def test_small_manifest_is_read_with_little_memory(tmp_path: Path, source: str) -> None:
    """A single read of the most that is allowed allocated 512 MiB at once, which some shells do not give."""
    path = tmp_path / "pods"
    path.write_text(POD)
    code = (
        "import resource, sys; from pathlib import Path; from aliquot.cli.manifests import read_manifests\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "print(read_manifests(Path(sys.argv[1]))[0].value['kind'])"
    )
    command = [sys.executable, "-c", code, "-" if source == "-" else str(path)]
    with path.open() as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("Pod\n", 0), done.stderr


def test_explain_refuses_cluster_without_node(tmp_path: Path) -> None:
    assert explain(tmp_path, POD, POD).startswith("cluster:1:1: has no Node in it")


def test_explain_refuses_truncated_cluster(tmp_path: Path) -> None:
    assert explain(tmp_path, POD, f'{{"kind": "List", "items": [{NODE}, {NODE[:-9]}').startswith("cluster:1:")


def test_error_is_one_line_for_any_file(tmp_path: Path) -> None:
    assert "a\\nb\\x1b" in explain(tmp_path, 'kind: Job\nmetadata: {name: x}\nspec: "a\\nb\\e"')


@pytest.mark.parametrize("missing", ["pods", "cluster"])
def test_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    files = {name: tmp_path / name for name in ("pods", "cluster")}
    files["pods"].write_text(POD)
    files["cluster"].write_text(NODE)
    files[missing].unlink()
    arguments = ["explain", "-f", str(files["pods"]), "--cluster", str(files["cluster"])]
    assert refused(CliRunner().invoke(cli, arguments)) == f"{files[missing]}: No such file or directory"
    files[missing].mkdir()
    assert refused(CliRunner().invoke(cli, arguments)) == f"{files[missing]}: Is a directory"


def test_stdin_cannot_be_both_files() -> None:
    assert "cannot both" in refused(CliRunner().invoke(cli, ["explain", "-f", "-", "--cluster", "-"], input=POD))


# --- simulate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "pods:1: column name: the file is empty"),
        (PODS.splitlines()[0], "pods:2: column name: nothing follows the header"),
        (PODS.replace(",num_gpu", ""), "pods:1: column num_gpu: is missing; the file has: name,"),
        (PODS.replace("1000,", "-5,"), 'pods:2: column cpu_milli: "-5" is not allowed: a whole number from 0 to'),
        (PODS.replace("1000,", "1.5,"), 'pods:2: column cpu_milli: "1.5" is not allowed'),
        (PODS.replace("1000,", "1_0,"), 'pods:2: column cpu_milli: "1_0" is not allowed'),
        (PODS.replace("1000,", "١,"), 'pods:2: column cpu_milli: "١" is not allowed'),
        (PODS.replace("1000,", ","), 'pods:2: column cpu_milli: "" is not allowed'),
        (PODS.replace("1000,", "9" * 5000 + ","), 'pods:2: column cpu_milli: "999'),
        (PODS.replace("500", "1001"), 'pods:2: column gpu_milli: "1001" is not allowed: a whole number from 1 to 1000'),
        (PODS.replace("500", "0"), 'pods:2: column gpu_milli: "0" is not allowed'),
        (PODS.replace("1,500", "0,500"), 'pods:2: column gpu_milli: "500" is not allowed: only 0'),
        (PODS + "p2,1,1,1,1,B|C\n", 'pods:3: column gpu_spec: "B|C" is a model that no node has; the nodes have: A'),
        (PODS + "p2,1\n", "pods:3: column memory_mib: is missing in this line"),
        (PODS + '"p\n2",1,x,1,1,\n', 'pods:4: column memory_mib: "x" is not allowed'),
        (PODS + '"p2', "pods:3: column 1: is not CSV: unexpected end of data"),
        (PODS + "p\0", "pods:3: column 2: is not text"),
        (PODS.encode() + b"\np2\xff", "pods:4: column 3: not UTF-8 text"),
        (b"\x7fELF\x00\x01", "pods:1: column 5: is not text"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_simulate_refuses_bad_pods_csv(tmp_path: Path, content: str | bytes, said: str) -> None:
    assert simulate(tmp_path, content).startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "nodes:1: column sn: the file is empty"),
        (NODES.replace(",model", ""), "nodes:1: column model: is missing"),
        (NODES.replace(",8,", ",-1,"), 'nodes:2: column gpu: "-1" is not allowed: a whole number from 0 to 128'),
        (NODES.replace("n1", ""), "nodes:2: column sn: is empty"),
        (NODES + "n1,1,1,1,A\n", 'nodes:3: column sn: "n1" stands twice'),
        (NODES.replace(",8,", ",0,"), "nodes:2: column gpu: no node has a GPU"),
    ],
)
def test_simulate_refuses_bad_nodes_csv(tmp_path: Path, content: str, said: str) -> None:
    assert simulate(tmp_path, PODS, content).startswith(said)


@pytest.mark.parametrize("target", ["0", "-1", "nan", "inf", "101"])
def test_simulate_refuses_bad_target(tmp_path: Path, target: str) -> None:
    assert simulate(tmp_path, PODS, NODES, "--target", target).startswith("--target: ")


@pytest.mark.parametrize("size", ["", "8", "0x8", "8x0", "8x129", "-1x8", "1e3x8", "9999999x128", "8x8x8"])
def test_simulate_refuses_bad_generate(size: str) -> None:
    assert refused(CliRunner().invoke(cli, ["simulate", "--generate", size])).startswith(f'--generate: "{size}" is not')


def test_simulate_needs_both_files_or_neither(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text(NODES)
    assert "give --nodes" in refused(CliRunner().invoke(cli, ["simulate", "--nodes", str(tmp_path / "nodes")]))
    assert "give either --generate or --nodes" in simulate(tmp_path, PODS, NODES, "--generate", "2x2")


def test_simulate_refuses_to_plot_other_formats(tmp_path: Path) -> None:
    said = simulate(tmp_path, "this is never read", NODES, "--plot", str(tmp_path / "a.png"))
    assert said == "--plot: a.png is not allowed: plots are SVG, name a file that ends with .svg"
    assert not (tmp_path / "a.png").exists()


def test_simulate_refuses_unwritable_plot_first(tmp_path: Path) -> None:
    plot = tmp_path / "no" / "such" / "a.svg"
    said = simulate(tmp_path, "this is never read", NODES, "--plot", str(plot))
    assert said == "--plot: no/such/a.svg: no such folder: no/such"


@pytest.mark.parametrize("command", [("up",), ("up", "--enforce", "report"), ("service", "install"), ("agent",)])
def test_grace_without_enforcement_is_refused(command: tuple[str, ...]) -> None:
    said = refused(CliRunner().invoke(cli, [*command, "--enforce-grace", "5s"]))
    assert said == "--enforce-grace: allowed with --enforce kill only: add it, or leave --enforce-grace out"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--keep-usage", "week"], "'--keep-usage': \"week\" is not allowed: a whole number from 1 to 3650"),
        (["up", "--keep-usage", "0"], "'--keep-usage': \"0\" is not allowed: a whole number from 1 to 3650"),
        (["top", "--every", "fast"], "'-d' / '--every': \"fast\" is not allowed: a number from 0.1 to 60"),
        (["top", "--every", "0"], "'-d' / '--every': \"0.0\" is not allowed: a number from 0.1 to 60"),
        (["logs", "x", "--tail", "-1"], "'--tail': \"-1\" is not allowed: a whole number, at least 0"),
        (["logs", "x", "--tail", "it's\x1b"], "'--tail': \"it's\\x1b\" is not allowed: a whole number, at least 0"),
        (["burn", "load", "--seconds", "0"], "'--seconds': \"0.0\" is not allowed: a number above 0, at most 86400"),
        (["probe", "--seconds", "x"], "'--seconds': \"x\" is not allowed: a number from 0.5 to 60"),
    ],
)
def test_wrong_number_names_what_is_allowed(words: list[str], said: str) -> None:
    """Click says "'week' is not a valid integer range"."""
    result = subprocess.run(
        [sys.executable, "-m", "aliquot", *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert (result.returncode, result.stdout) == (2, "")
    command = "burn load" if words[0] == "burn" else words[0]
    assert result.stderr.startswith(f"aliquot: Invalid value for {said} (see aliquot {command} --help)")
