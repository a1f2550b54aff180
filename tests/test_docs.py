"""What the documents say is what the program does."""

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
from aliquot.placement.choose import POLICIES

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the bench is not part of the package
from bench.plots import PLOTS  # noqa: E402 - only now to be found

READMES = ("README.md", "README.zh-CN.md")


def _block(readme: str, command: str) -> str:
    """What a README shows under the command."""
    text = (ROOT / readme).read_text()
    found = re.search(rf"^\$ {re.escape(command)}[^\n]*\n(.*?)(?:\n\n\$ |\n```)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{readme} does not show `{command}`"
    return found[1]


def _run(command: object, *args: str) -> Result:
    return CliRunner().invoke(command, args)  # type: ignore[arg-type]  # click's decorators hide the type


@pytest.mark.parametrize("readme", READMES)
def test_explain_prints_what_the_readme_shows(readme: str) -> None:
    folder = ROOT / "examples" / "explain"
    result = _run(explain, "-f", str(folder / "pods.yaml"), "--cluster", str(folder / "cluster.yaml"))
    assert result.stderr + result.stdout == _block(readme, "aliquot explain") + "\n"
    assert result.exit_code == 1


@pytest.mark.parametrize("readme", READMES)
def test_simulate_prints_what_the_readme_shows_but_for_the_speed(readme: str) -> None:
    printed = _run(simulate, "--generate", "200x8", "--policy", "all").stdout

    def without_speed(text: str) -> list[list[str]]:
        return [line.split()[:-1] if line.startswith(tuple(POLICIES)) else line.split() for line in text.splitlines()]

    assert without_speed(_block(readme, "aliquot simulate --generate 200x8 --policy all")) == without_speed(printed)


@pytest.mark.parametrize("readme", READMES)
def test_every_policy_is_told_of(readme: str) -> None:
    text = (ROOT / readme).read_text()
    assert all(f"| `{policy}` |" in text for policy in POLICIES)


@pytest.mark.parametrize("readme", READMES)
def test_every_command_is_told_of(readme: str) -> None:
    text = (ROOT / readme).read_text()
    assert [name for name, _, _ in COMMANDS if f"aliquot {name}" not in text] == []


def test_every_command_says_of_itself_what_the_list_says() -> None:
    for name, place, line in COMMANDS:
        if name != "run":
            module, _, attribute = place.partition(":")
            command = getattr(importlib.import_module(f"aliquot.cli.{module}"), attribute)
            assert (command.help or "").startswith(line.rstrip(".")), name


PAGES = sorted(
    page
    for folder in (ROOT, ROOT / "docs", ROOT / "examples")
    for page in (folder.rglob("*.md") if folder.name == "examples" else folder.glob("*.md"))
)
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[*`]", "", heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_documents_leads_somewhere(page: Path) -> None:
    for link, anchor in _LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{page.name} links to {link}#{anchor}"


def test_every_document_is_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        links = (link for link, _ in _LINK.findall(page.read_text()) if link.endswith(".md") and "://" not in link)
        left += [(page.parent / link).resolve() for link in links]
    assert [page.name for page in PAGES if page.resolve() not in reached] == []


def test_every_test_that_a_document_names_is_there() -> None:
    for page in PAGES:
        for file, name in re.findall(r"`(?:tests/[\w/]+/)?(test_\w+\.py)::(test_\w+)`", page.read_text()):
            found = [path for path in (ROOT / "tests").rglob(file) if f"def {name}(" in path.read_text()]
            assert found, f"{page.name} names {file}::{name}"


def test_the_page_of_commands_is_fresh() -> None:
    """`make docs` writes it. In a process of its own: click keeps what it was first asked for."""
    made = subprocess.run([sys.executable, "-m", "aliquot.cli.reference"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "cli.md").read_text() == made.stdout


@pytest.mark.parametrize("name", sorted(PLOTS))
def test_the_plots_of_the_policies_are_fresh(name: str) -> None:
    """`make docs` draws them."""
    assert (ROOT / "docs" / "img" / name).read_text() == PLOTS[name]()


def _metrics() -> set[str]:
    """Every metric that the code names, as it is called in a query, but for the suffix of a counter."""
    services = [path.read_text() for path in (ROOT / "src" / "aliquot" / "services").glob("*.py")]
    named = {name for text in services for name in re.findall(r'"(aliquot_\w+)"', text)}
    calls = {prefix for text in services for prefix in re.findall(r'of_calls\(calls, "(aliquot_\w+)"\)', text)}
    return (named - calls) | {f"{prefix}_{what}" for prefix in calls for what in ("calls", "call_seconds")}


def test_every_metric_is_told_of() -> None:
    pages = "".join((ROOT / "docs" / page).read_text() for page in ("operations.md", "agent.md"))
    told = {re.sub(r"_(total|info)$", "", name) for name in re.findall(r"`(aliquot_\w+)`", pages)}
    assert _metrics() <= told


def test_the_pages_name_no_other_metrics() -> None:
    known = _metrics()
    for page in ("operations.md", "agent.md", "security.md"):
        for name in re.findall(r"\baliquot_[a-z]\w+", (ROOT / "docs" / page).read_text()):
            assert re.sub(r"_(total|info|bucket|sum|count)$", "", name) in known, f"{page} names {name}"


def test_every_alert_says_what_it_is_for_and_is_a_rule_that_prometheus_reads() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    block = page[page.index("kind: PrometheusRule") :]
    rules = yaml.safe_load(block[: block.index("```")])["spec"]["groups"][0]["rules"]
    assert rules
    for rule in rules:
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert set(rule) <= {"alert", "expr", "for", "labels"}
        assert re.search(rf"- alert: {rule['alert']} +# \w", page), f"{rule['alert']} does not say what to do"


def test_every_room_has_a_charter_and_a_place_in_the_drawing() -> None:
    drawing = (ROOT / "docs" / "architecture.md").read_text()
    for room in sorted((ROOT / "src" / "aliquot").iterdir()):
        if (room / "__init__.py").exists():
            charter = (room / "__init__.py").read_text()
            question = re.match(r'"""([A-Z \']+\?)', charter)
            assert question, f"{room.name} does not open with the question it answers"
            assert f"{room.name}/" in drawing
            assert question[1] in drawing
            for module in room.glob("*.py"):
                if module.name != "__init__.py" and room.name in ("placement", "cli", "services", "sim"):
                    assert module.name in charter, f"{room.name}/__init__.py does not tell of {module.name}"
