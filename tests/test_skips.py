"""Tests that assert nothing: what is skipped is counted and said, and a loop over cases looks at each of them."""

import ast
import os
import re
import subprocess
import sys

import pytest
from harness.programs import ROOT

SKIPS = ROOT / "scripts" / "skips.py"
RUST = (
    "golden\tlong\tno ../shared/x\ngolden\tlong\tno ../shared/x\ncli\tman_pages\tnot installed:"
    " groff\ncli\tman_pages\tnot installed: fish\n"
)
PYTEST = """.s. [100%]
SKIPPED [2] tests/test_x.py:24: no ../shared/x
SKIPPED [1] tests/test_ksm.py:30: this kernel has no KSM
31 passed, 3 skipped in 208.51s
"""


def skips(*arguments, strict=False):
    environment = {k: v for k, v in os.environ.items() if k != "UNDERCROFT_NO_SKIPS"} | (
        {"UNDERCROFT_NO_SKIPS": "1"} if strict else {}
    )
    done = subprocess.run(
        [sys.executable, SKIPS, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "skips").write_text(RUST)
    (tmp_path / "pytest.log").write_text(PYTEST)
    return tmp_path


def test_a_test_counts_once_and_every_reason_is_said(files):
    assert skips("count", files / "skips") == (0, ["2"])
    said = ["skipped 3: no ../shared/x", "skipped 1: not installed: groff", "skipped 1: this kernel has no KSM"]
    assert skips("report", files / "skips", files / "pytest.log") == (0, said)
    assert skips("report", files / "absent", files / "absent too") == (0, [])
    assert skips("count", files / "absent") == (0, ["0"])


def test_continuous_integration_fails_on_skips_that_are_not_declared(files):
    status, said = skips("report", files / "skips", files / "pytest.log", strict=True)
    refused = [
        line.rsplit(": ", 1)[1] if "groff" not in line else "groff" for line in said if line.startswith("not permitted")
    ]
    assert (status, refused) == (1, ["no ../shared/x", "groff"])
    (files / "pytest.log").write_text("SKIPPED [1] tests/test_ksm.py:30: this kernel has no KSM\n")
    assert skips("report", files / "pytest.log", strict=True) == (0, ["skipped 1: this kernel has no KSM"])
    assert "export UNDERCROFT_NO_SKIPS=1" in (ROOT / ".ci" / "run").read_text()
    permitted = (ROOT / ".ci" / "permitted-skips").read_text()
    assert "installed" not in re.sub("#.*", "", permitted) and "../shared" not in re.sub("#.*", "", permitted)


@pytest.mark.parametrize("strict", [False, True], ids=["by hand", "in continuous integration"])
def test_the_closing_line_has_the_skips_and_the_reasons_stand_above(tmp_path, strict):
    """The end of scripts/test.sh, in a tree of its own: what a Rust test skipped is not passed."""
    for name in ("scripts", ".ci"):
        (tmp_path / name).mkdir()
    text, rest = (ROOT / "scripts/test.sh").read_text().split('step "layout"')
    counted = rest[rest.index("# The harness counts") : rest.index("if [", rest.index("# The harness counts"))]
    log = "test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out"
    steps = f"""printf '%b' '{RUST.encode("unicode_escape").decode()}' >"$UNDERCROFT_SKIPS"
echo '{log}' >"$logs/cargo.log"
printf '%s' '{PYTEST}' >"$logs/pytest.log"
status=0
{counted}
count_pytest pytest 0 "$logs/pytest"
finish
"""
    (tmp_path / "scripts/test.sh").write_text(text + steps)
    for name in ("scripts/skips.py", ".ci/permitted-skips"):
        (tmp_path / name).write_text((ROOT / name).read_text())
        (tmp_path / name).chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNDERCROFT_")} | (
        {"UNDERCROFT_NO_SKIPS": "1"} if strict else {}
    )
    done = subprocess.run(
        ["bash", tmp_path / "scripts/test.sh"], env=environment, capture_output=True, text=True, check=False
    )
    *above, last = done.stdout.splitlines()
    assert last == f"39 passed, {int(strict)} failed, 5 skipped", done.stdout + done.stderr
    assert done.returncode == int(strict)
    assert "skipped 3: no ../shared/x" in above and "skipped 1: not installed: groff" in above
    assert ("failed: tests were skipped that have to run here" in above) == strict


def test_rust_tests_skip_so_that_it_counts():
    """A test that prints that it does nothing and returns counts as passed."""
    seen = 0
    for path in [*ROOT.glob("crates/*/tests/**/*.rs"), *ROOT.glob("crates/*/src/**/*.rs")]:
        text = path.read_text()
        if path.parts[-3] == "skips":
            continue
        if "tests" not in path.parts and path.name != "tests.rs":
            text = text.partition("#[cfg(test)]")[2]
        seen += "undercroft_skips::" in text
        assert not re.search(
            r'print(ln)?!\(\s*"skipped', text, re.IGNORECASE
        ), f"{path}: say it by undercroft_skips::skip"
    assert seen > 5


def unused(tree):
    """Loops of a module that never look at something that they loop over: (line, name)."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For):
            names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            used = {n.id for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Name)}
            yield from ((loop.lineno, name) for name in sorted(names - used) if not name.startswith("_"))


def test_loops_over_cases_use_each_part_of_a_case():
    """What a case should lead to is no use if nobody looks at it: such a loop passes whatever happens."""
    example = "for argument, said in ((1, 'a'), (2, 'b')):\n    refused = run(argument)\n"
    assert list(unused(ast.parse(example))) == [(1, "said")]
    found, loops = [], 0
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "crates/python/tests").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        loops += sum(isinstance(n, ast.For) for n in ast.walk(tree))
        found += [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in unused(tree)]
    assert loops > 100 and found == []
