"""The documents agree with the program: commands, output, links, metrics, modules and tests that they name."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from aliquot.cli.cluster.explain import explain
from aliquot.cli.main import COMMANDS
from aliquot.cli.simulate import simulate
from aliquot.dialects import parse_pod
from aliquot.model.claim import AppClass, Claim
from aliquot.placement.choose import POLICIES

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the bench is not part of the package
from bench.plots import PLOTS  # noqa: E402 - only now to be found

READMES = ("README.md", "README.zh-CN.md")
LONGEST_README = 150  # lines; the rest is in docs/


def _block(page: str, command: str) -> str:
    """The output that a page shows under the command."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^\$ {re.escape(command)}[^\n]*\n(.*?)(?:\n\n\$ |\n```)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} does not show `{command}`"
    return found[1]


def _run(command: object, *args: str) -> Result:
    return CliRunner().invoke(command, args)  # type: ignore[arg-type]  # click's decorators hide the type


@pytest.mark.parametrize("readme", READMES)
def test_readme_is_short(readme: str) -> None:
    assert len((ROOT / readme).read_text().splitlines()) <= LONGEST_README


def test_both_readmes_have_the_same_sections_and_links() -> None:
    english, chinese = ((ROOT / readme).read_text() for readme in READMES)
    assert len(re.findall(r"^#+ ", english, re.MULTILINE)) == len(re.findall(r"^#+ ", chinese, re.MULTILINE))
    assert len(re.findall(r"^\|", english, re.MULTILINE)) == len(re.findall(r"^\|", chinese, re.MULTILINE))
    other = {"README.md", "README.zh-CN.md"}  # each links to the other
    translated = {link.replace("docs/zh-CN/", "docs/") for link, _ in _LINK.findall(chinese)}
    assert {link for link, _ in _LINK.findall(english)} - other == translated - other


def test_chinese_readme_links_to_chinese_pages_where_they_exist() -> None:
    linked = {link for link, _ in _LINK.findall((ROOT / "README.zh-CN.md").read_text())}
    assert [page.name for page in (ROOT / "docs" / "zh-CN").glob("*.md") if f"docs/{page.name}" in linked] == []


@pytest.mark.parametrize("readme", READMES)
def test_readme_starts_with_a_pod_that_is_allowed(readme: str) -> None:
    manifest = re.search(
        r"^```yaml\n(.*?)^```", (ROOT / readme).read_text().partition("\n## ")[0], re.MULTILINE | re.DOTALL
    )
    assert manifest, "no manifest before the first section"
    claim = parse_pod(yaml.safe_load(manifest[1]))
    assert isinstance(claim, Claim), claim
    assert claim.app_class == AppClass.ONLINE


def test_explain_page_shows_what_explain_prints() -> None:
    folder = ROOT / "examples" / "explain"
    result = _run(explain, "-f", str(folder / "pods.yaml"), "--cluster", str(folder / "cluster.yaml"))
    assert result.stderr + result.stdout == _block("docs/explain.md", "aliquot explain") + "\n"
    assert result.exit_code == 1
    quoted = re.search(r"^```\n(spec\..*)\n```", (ROOT / "docs" / "dialects.md").read_text(), re.MULTILINE)
    assert quoted
    assert f"    {quoted[1]}\n" in result.stdout


def test_packing_page_shows_what_simulate_prints_except_the_speed() -> None:
    printed = _run(simulate, "--generate", "200x8", "--policy", "all").stdout

    def without_speed(text: str) -> list[list[str]]:
        return [line.split()[:-1] if line.startswith(tuple(POLICIES)) else line.split() for line in text.splitlines()]

    shown = _block("docs/packing.md", "aliquot simulate --generate 200x8 --policy all")
    assert without_speed(shown) == without_speed(printed)


def test_policies_page_has_a_row_for_every_placement_policy() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    assert [
        policy for policy in POLICIES if not re.search(rf"^\| `{policy}`( \(default\))? \|", text, re.MULTILINE)
    ] == []


def test_every_command_has_a_row_in_a_table_of_commands() -> None:
    """One machine's commands in one-machine.md, a cluster's in operations.md."""
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("one-machine.md", "operations.md"))
    rows = [line.split(" | ")[0] for line in pages.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`aliquot ([a-z-]+)", row)}
    assert [name for name, _, _ in COMMANDS if name not in listed] == []


def test_help_of_every_command_starts_with_its_line_in_the_list() -> None:
    for name, place, line in COMMANDS:
        if name != "run":
            module, _, attribute = place.partition(":")
            command = getattr(importlib.import_module(f"aliquot.cli.{module}"), attribute)
            assert (command.help or "").startswith(line.rstrip(".")), name


PAGES = sorted(
    page
    for folder in (ROOT, ROOT / "docs", ROOT / "examples")
    for page in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
)
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes from the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[*`]", "", heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_documents_resolves(page: Path) -> None:
    for link, anchor in _LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{page.name} links to {link}#{anchor}"


def test_every_document_is_linked_from_the_readme_or_its_pages() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        links = (link for link, _ in _LINK.findall(page.read_text()) if link.endswith(".md") and "://" not in link)
        left += [(page.parent / link).resolve() for link in links]
    assert [page.name for page in PAGES if page.resolve() not in reached] == []


def test_every_test_that_a_document_names_exists() -> None:
    for page in PAGES:
        for file, name in re.findall(r"`(?:tests/[\w/]+/)?(test_\w+\.py)::(test_\w+)`", page.read_text()):
            found = [path for path in (ROOT / "tests").rglob(file) if f"def {name}(" in path.read_text()]
            assert found, f"{page.name} names {file}::{name}"


def test_help_of_every_command_has_an_example() -> None:
    sections = re.split(r"^## ", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)[1:]
    example = re.compile(r"^  (aliquot|kubectl) ", re.MULTILINE)
    assert [section.splitlines()[0] for section in sections if not example.search(section)] == []


def test_cli_page_is_fresh() -> None:
    """`make docs` writes it. Runs in its own process, because click caches the first help it renders."""
    made = subprocess.run([sys.executable, "-m", "aliquot.cli.reference"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "cli.md").read_text() == made.stdout


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_policy_plots_are_fresh(name: str) -> None:
    """`make docs` draws them."""
    assert (ROOT / "docs" / "img" / name).read_text() == PLOTS[name]()


def _metrics() -> set[str]:
    """Every metric that the code names, as a query calls it, without the suffix of a counter."""
    services = [path.read_text() for path in (ROOT / "src" / "aliquot" / "services").rglob("*.py")]
    named = {name for text in services for name in re.findall(r'"(aliquot_\w+)"', text)}
    calls = {prefix for text in services for prefix in re.findall(r'of_calls\(calls, "(aliquot_\w+)"\)', text)}
    assert len(named) > 30, "the metrics are somewhere else now"
    return (named - calls) | {f"{prefix}_{what}" for prefix in calls for what in ("calls", "call_seconds")}


def test_every_metric_is_documented() -> None:
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("operations.md", "agent.md"))
    documented = {re.sub(r"_(total|info)$", "", name) for name in re.findall(r"`(aliquot_\w+)`", pages)}
    assert _metrics() - documented == set()


def test_documents_name_only_metrics_that_exist() -> None:
    known = _metrics()
    for page in ("operations.md", "agent.md", "security.md"):
        for name in re.findall(r"\baliquot_[a-z]\w+", (ROOT / "docs" / page).read_text()):
            assert re.sub(r"_(total|info|bucket|sum|count)$", "", name) in known, f"{page} names {name}"


def test_every_alert_has_a_comment_and_is_a_rule_that_prometheus_reads() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    block = page[page.index("kind: PrometheusRule") :]
    rules = yaml.safe_load(block[: block.index("```")])["spec"]["groups"][0]["rules"]
    assert rules
    for rule in rules:
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert set(rule) <= {"alert", "expr", "for", "labels"}
        assert re.search(rf"- alert: {rule['alert']} +# \w", page), f"{rule['alert']} does not say what to do"


def _packages() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "src" / "aliquot").rglob("__init__.py"))


def test_every_package_has_a_charter() -> None:
    for package in _packages():
        charter = (package / "__init__.py").read_text()
        assert re.match(r'"""\S.{20,}', charter), f"{package.name}/__init__.py does not say what the package is for"


def test_architecture_page_shows_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page[page.index("## The tree") : page.index("## The layers")]
    assert [package.name for package in _packages()[1:] if f"{package.name}/" not in tree] == []


@pytest.mark.parametrize("package", ["arbiter", "placement", "sim"])
def test_charter_of_a_package_without_subpackages_lists_its_modules(package: str) -> None:
    charter = (ROOT / "src" / "aliquot" / package / "__init__.py").read_text()
    modules = [path.name for path in (ROOT / "src" / "aliquot" / package).glob("*.py") if path.name != "__init__.py"]
    assert [module for module in modules if module not in charter] == []


@pytest.mark.parametrize("package", ["cli", "services"])
def test_charter_of_programs_and_commands_lists_its_packages(package: str) -> None:
    charter = (ROOT / "src" / "aliquot" / package / "__init__.py").read_text()
    folders = [path.parent.name for path in (ROOT / "src" / "aliquot" / package).glob("*/__init__.py")]
    assert [folder for folder in folders if not re.search(rf"^{folder} ", charter, re.MULTILINE)] == []


_PACKAGES = "adapters|arbiter|cli|dialects|model|placement|services|sim|wording"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_document_names_exists(page: Path) -> None:
    named = re.findall(rf"(?<![\w/])(?:src/aliquot/)?((?:{_PACKAGES})/[\w/]+\.py)\b", page.read_text())
    assert [module for module in named if not (ROOT / "src" / "aliquot" / module).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_file_that_a_document_names_exists(page: Path) -> None:
    for path in re.findall(r"`(tests/[\w/.]+)`", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    for file in re.findall(r"`(test_\w+\.py)(?:::\w+)?`", page.read_text()):
        assert any((ROOT / "tests").rglob(file)), f"{page.name} names {file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_a_document_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^\$ )make ([a-z][a-z0-9-]*)", page.read_text(), re.MULTILINE))
    assert named - targets == set()
