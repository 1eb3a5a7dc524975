"""The table of public failures (docs/reference/public-failures.md): each case has tests, and each of them is there."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "public-failures.md"
CASES = {
    row[0].strip(): re.findall(r"`(test_\w+\.py::[^`]+)`", row[3])
    for line in PAGE.read_text().splitlines()
    if len(row := line.strip("| ").split(" | ")) == 4 and row[0].startswith("P-")
}


@cache
def collected() -> set[str]:
    """Ids of every test of the files that the table names, without running one."""
    files = sorted({f"tests/{name.partition('::')[0]}" for names in CASES.values() for name in names})
    without = ["-p", "no:cacheprovider", "-p", "no:syrupy"]  # which calls it a failure that no snapshot was compared
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *without, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = (line.removeprefix("tests/") for line in done.stdout.splitlines())
    return {name for line in lines if "::" in line for name in (line, line.partition("[")[0])}


def test_every_case_is_in_the_table() -> None:
    assert len(CASES) == 33


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_held_by_tests_that_exist(case: str) -> None:
    assert CASES[case], f"{case} names no test"
    assert set(CASES[case]) <= collected()
