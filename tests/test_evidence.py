"""What docs/evidence says of the documents this project started from is complete, and can be run again.

Owns the form of these files: their rows, verdicts, commands and places. Never runs an experiment and never judges a
figure. Invariant: each file answers every row of its inventory in ../shared once, and the counts in its head are right.
"""

import collections
import re
import tomllib
from pathlib import Path

import pytest
from harness.programs import ROOT, built, run

EVIDENCE = sorted((ROOT / "docs" / "evidence").glob("*.toml"))
INVENTORY = ROOT.parent / "shared" / "reference" / "evidence"
FIELDS = ["id", "ours", "verdict", "why", "command", "where"]
VERDICTS = ("reproduced", "partly", "not", "not checkable", "open")
# Those that say that nothing of ours can be run.
WITHOUT_COMMAND = {"not checkable", "open"}
# A command is one of these, or several that are joined by this.
THEN = ", then "
TARGETS = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split())
TERSE = 20


def rows(path: Path) -> list[dict[str, str]]:
    """All rows of a file, in order."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["row"]


def subcommand(words: list[str]) -> tuple[str, ...]:
    """The commands of `undercroft` that a line begins with; what comes after them are its arguments."""
    found = []
    for word in words:
        if not re.fullmatch(r"[a-z]+(-[a-z]+)*", word):
            break
        found.append(word)
    return tuple(found)


def counts(head: str) -> dict[str, int]:
    """How many rows a file's head says have each verdict."""
    return {m[1]: int(m[2]) for m in re.finditer(r"^#   (\S+(?: \S+)?) +(\d+)   \S", head, re.MULTILINE)}


def anchors(path: Path) -> set[str]:
    """The headings of a page, as links name them: one that is there already gets a number."""
    found: collections.Counter[str] = collections.Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def is_there(command: str, commands: set[tuple[str, ...]]) -> bool:
    """Whether a command is a target, a file of ours, or one of `undercroft`, which is noted for a later look."""
    first, *words = command.split()
    if first == "make":
        return bool(words) and words[0] in TARGETS
    if first == "undercroft":
        commands.add(subcommand(words))
        return bool(subcommand(words))
    return first.startswith(("scripts/", "experiments/")) and (ROOT / first).is_file()


def test_there_is_evidence():
    assert EVIDENCE, "docs/evidence is empty"


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_every_row_of_the_inventory_is_answered_once(path):
    """In the inventory's order, so that the two can be read side by side."""
    inventory = INVENTORY / path.name
    if not inventory.exists():
        pytest.skip(f"no ../shared/reference/evidence/{path.name}")
    assert [row["id"] for row in rows(path)] == [row["id"] for row in rows(inventory)]


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_every_row_has_a_verdict_and_a_reason(path):
    """What is not checkable or open has nothing to run; everything else has a figure, a command and a place."""
    wrong = []
    for row in rows(path):
        assert list(row) == FIELDS and all(isinstance(value, str) for value in row.values()), row
        nothing = row["verdict"] in WITHOUT_COMMAND
        ours = nothing or bool(row["ours"])
        if row["verdict"] not in VERDICTS or len(row["why"]) < TERSE or not ours:
            wrong.append(row["id"])
        elif nothing != (row["command"] == "") or nothing != (row["where"] == ""):
            wrong.append(row["id"])
    assert not wrong


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_every_command_exists(path):
    """Nothing is run but the help of what `undercroft` is asked to do."""
    commands: set[tuple[str, ...]] = set()
    said = [(row["id"], part) for row in rows(path) if row["command"] for part in row["command"].split(THEN)]
    missing = [f"{name}: {part}" for name, part in said if not is_there(part, commands)]
    missing += [
        f"undercroft {' '.join(words)}"
        for words in sorted(commands)
        if run(built("undercroft"), *words, "--help", check=False).returncode != 0
    ]
    assert said and not missing


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_every_place_exists(path):
    """A file of the repository, and where a heading is named, a heading of that page."""
    missing = []
    for row in rows(path):
        name, mark, heading = row["where"].partition("#")
        page = ROOT / name
        if name and not (page.is_file() and (not mark or heading in anchors(page))):
            missing.append(f"{row['id']}: {row['where']}")
    assert not missing


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_the_head_counts_its_verdicts(path):
    head = path.read_text(encoding="utf-8").partition("[[row]]")[0]
    have = collections.Counter(row["verdict"] for row in rows(path))
    assert counts(head) == {verdict: have[verdict] for verdict in VERDICTS}
