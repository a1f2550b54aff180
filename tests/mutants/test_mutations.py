"""What `make mutants` changes, and that the list of harmless changes is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.mutations import Mutation, mutations
from mutants.run import PACKAGES, ROOT, equivalents, files, named_by, not_equivalent, sample, stages


def changes(folder: Path, body: str) -> list[str]:
    file = folder / "module.py"
    file.write_text(f'"""Text."""\nFIGURE = 7\n\n\ndef decide(a: int = 3, b: int = 4) -> int | None:\n    {body}\n')
    return [mutation.change for mutation in mutations(file)]


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("a <= b", ["a <= b  ->  a < b", "a <= b  ->  a > b"]),
        ("a is None", ["a is None  ->  a is not None"]),
        ("a in b", ["a in b  ->  a not in b"]),
        ("a and b", ["a and b  ->  a or b"]),
        ("not a", ["not a  ->  not not a"]),
        ("a + b", ["a + b  ->  a - b"]),
        ("a += b", ["a += b  ->  a -= b"]),
        ("f'{a}' + b", []),
        ("a[2]", ["2  ->  3", "2  ->  1"]),
        ("max(a, b)", ["max(a, b)  ->  min(a, b)", "max(a, b)  ->  max(b, b)", "max(a, b)  ->  max(a, a)"]),
        ("return a", ["return a  ->  return None"]),
        ("return None", []),
        ("a = True", ["True  ->  False"]),
        ("x: list[1] = a", []),
        ("a if b else x", ["a if b else x  ->  a if not b else x"]),
    ],
)
def test_mutations_of_one_line(tmp_path: Path, body: str, made: list[str]) -> None:
    assert changes(tmp_path, body) == made


def test_mutation_changes_the_answer_of_the_module(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def decide(a: int, b: int) -> bool:\n    return a < b\n")
    answers = []
    for mutation in mutations(file):
        names: dict[str, object] = {}
        exec(mutation.code(), names)
        answers.append([names["decide"](*pair) for pair in ((1, 2), (2, 2), (2, 1))])  # type: ignore[operator]
    assert answers == [[None, None, None], [True, True, False], [False, True, True]]


def test_sample_is_the_same_for_the_same_seed_and_other_for_another() -> None:
    def drawn(seed: int) -> list[Mutation]:
        return sample([str(ROOT / "src/aliquot/arbiter")], 6, seed)

    assert drawn(1) == drawn(1) != drawn(2)


def test_sample_of_one_line() -> None:
    file = ROOT / "src/aliquot/arbiter/card.py"
    line = mutations(file)[0].line
    assert {mutation.line for mutation in sample([f"{file}:{line}"], 100, 1)} == {line}


def test_tests_named_like_the_module_come_first_and_then_all_others_of_the_package() -> None:
    for package in PACKAGES:
        for file in files(package):
            *own, others = stages(file)
            assert all(file.stem in Path(test).stem for tests in own for test in tests)
            assert sum(map(len, [*own, others])) == len(list((ROOT / "tests" / package).rglob("test_*.py")))


def test_every_equivalent_change_can_still_be_made_and_has_a_reason() -> None:
    for entry in equivalents():
        named = named_by(entry, mutations(ROOT / entry["file"]))
        assert named, f"{entry} is no change any more: remove it"
        assert len(named) == 1, f"{entry} names {len(named)} changes: say by nth = 1, 2, ... which of them"
        assert len(entry["reason"]) > 20


def test_equivalent_change_hides_no_other_one_of_its_line() -> None:
    file = ROOT / "src/aliquot/placement/board.py"
    line = "self._widen(max((card.index + 1 for card in cards), default=1))"
    texts = [mutation.change for mutation in not_equivalent(file) if mutation.source == line]
    assert texts.count("1  ->  0") == 1
