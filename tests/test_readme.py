"""What README tells a newcomer to paste works when it is pasted."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from harness.programs import ROOT, built, need

README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^(?:<!-- paste: (\w+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blocks that are not pasted here, by the mark before them: how many there are, and why.
LEFT_OUT = {"minutes": 2, "root": 0, "kvm": 0}
PASTED_MIN = 4


def blocks() -> list[tuple[str, str, str]]:
    """All fenced blocks: mark, language, text."""
    return [(m[1] or "", m[2], m[3]) for m in FENCE.finditer(README)]


def shell() -> list[tuple[str, str]]:
    """The blocks for a shell: mark, text."""
    return [(mark, text) for mark, language, text in blocks() if language == "sh"]


def test_every_block_is_pasted_or_counted():
    """A block that is neither shell nor Python is output, and a mark is one that this test knows."""
    assert README.count("```") == 2 * len(blocks()), "a fence without its end, or a mark that is not right before one"
    assert {language for _, language, _ in blocks()} <= {"sh", "python", ""}
    assert {mark: sum(m == mark for m, _ in shell()) for mark in LEFT_OUT} == LEFT_OUT
    assert {mark for mark, _ in shell()} <= {"", *LEFT_OUT}
    assert sum(not mark for mark, _ in shell()) >= PASTED_MIN
    for _, text in shell():
        assert not re.search(r"^\s*[$#%>] ", text, re.MULTILINE), "a prompt cannot be pasted"


def test_what_takes_minutes_is_there():
    """The targets of make that are not run here exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {name for _, text in shell() for name in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)}
    assert named and named <= targets


def test_the_shell_is_told_where_the_program_is():
    """Before the first line that runs it: for each way to get it, where that one puts it."""
    told = README.partition("## First steps")[2].partition("```")[0]
    for place in ("/usr/bin", "$HOME/.local/bin:$PATH", "$PWD/target/release:$PATH"):
        assert place in told, f"{place} is not in: {told}"


def test_every_block_can_be_pasted(tmp_path):
    """In order, in one directory, each by a shell of its own, as an ordinary user does; no line may fail."""
    need("qemu-io")
    home = tmp_path / "home"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNDERCROFT_") and k != "NOTIFY_SOCKET"}
    environment |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "NO_COLOR": "1"}
    environment["PATH"] = f"{Path(built('undercroft')).parent}:{environment['PATH']}"
    try:
        for n, text in enumerate(text for mark, text in shell() if not mark):
            said = tmp_path / f"block{n}.log"
            with said.open("w", encoding="utf-8") as log:
                # A file, since a daemon that a block leaves running keeps what it was given.
                done = subprocess.run(
                    ["bash", "-eu", "-c", text],
                    cwd=home,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=300,
                    check=False,
                )
            assert done.returncode == 0, f"{text}\n{said.read_text(encoding='utf-8', errors='replace')}"
        left = subprocess.run([built("undercroft"), "status"], env=environment, capture_output=True, check=False)
        assert left.returncode == 1, "the last block leaves a daemon running"
    finally:
        subprocess.run([built("undercroft"), "stop"], env=environment, capture_output=True, check=False)
    assert (home / "ratios.svg").stat().st_size > 0 and (home / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\((?!http)([^)#]+)", README))))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


def test_the_glossary_says_where_things_live():
    """Each place in its last column is a crate, a file or a folder below one, or a document."""
    table = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    assert [row[0].lower() for row in rows] == sorted(row[0].lower() for row in rows) and len(rows) > 30
    crates = ROOT / "crates"
    missing = []
    for term, _, where in rows:
        for place in re.findall(r"`([a-z_/]+)`", where):
            crate, _, below = place.partition("/")
            source = crates / crate / "src" / below
            if not ((crates / crate).is_dir() and (source.is_dir() or source.with_suffix(".rs").exists())):
                missing.append(f"{term}: {place}")
    assert not missing
