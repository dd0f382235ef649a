"""SENTENCES.md leads a reader from what hosts are asked for to the test that drives it, and does not lead astray."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE / "SENTENCES.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w./]+\.py)::(\w+)`")
LINE = re.compile(r"^\| (?P<what>[^|]+) \| (?P<test>[^|]+) \|$", re.MULTILINE)
NOT_YET = "not built yet"


def test_every_sentence_has_a_test_or_says_that_it_is_not_built() -> None:
    lines = [(what, test) for what, test in LINE.findall(PAGE) if what not in ("what", "---")]
    assert len(lines) > 70
    bare = [what for what, test in lines if test != NOT_YET and not re.fullmatch(r"(`[^`]+`(, )?)+", test)]
    assert bare == []
    assert sum(test == NOT_YET for _, test in lines) <= 2


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(NAMED.findall(PAGE))
    assert len(named) > 60
    missing = [f"{file}::{test}" for file, test in named if not _defines(HERE / file, test)]
    assert missing == []


def test_every_file_of_this_directory_is_on_the_page() -> None:
    named = {file for file, _ in NAMED.findall(PAGE)} | {Path(__file__).name}
    assert {file.name for file in HERE.glob("test_*.py")} - named == set()


def _defines(file: Path, test: str) -> bool:
    return file.exists() and re.search(rf"^(async )?def {test}\(", file.read_text(), re.MULTILINE) is not None
