"""What the documents say is what the program does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.explain import explain
from aliquot.cli.main import COMMANDS
from aliquot.cli.simulate import simulate
from aliquot.placement.choose import POLICIES

ROOT = Path(__file__).parent.parent
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
def test_make_run_prints_what_the_readme_shows_but_for_the_speed(readme: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "simulate --generate 200x8 --policy all --plot out/packing.svg" in makefile
    printed = _run(simulate, "--generate", "200x8", "--policy", "all").stdout

    def without_speed(text: str) -> list[list[str]]:
        return [line.split()[:-1] if line.startswith(tuple(POLICIES)) else line.split() for line in text.splitlines()]

    shown = without_speed(_block(readme, "make run"))
    assert shown[:-2] == without_speed(printed)


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


def test_every_link_between_documents_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if not link.startswith(("http://", "https://")):
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


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
