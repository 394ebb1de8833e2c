"""The numbers that the documents quote are what they count."""

import re
import subprocess
import sys

import pytest
from harness.programs import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import counts  # noqa: E402 - scripts/ is no package


def test_every_number_in_the_documents_is_right():
    """If this fails: `scripts/counts.py --write`, and look at what it changed."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "counts.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documents_quote_what_has_been_wrong_before():
    """Marks that are taken away are checked by nobody: these have to be there."""
    marked = {path.name: {m[1] for m in counts.MARK.findall(path.read_text())} for path in counts.documents()}
    promised = {
        "kill-rounds",
        "planted-bugs",
        "metadata-and-content-bytes",
        "wide-hits-64k",
        "wide-hits-256k",
        "fuzz-seconds-long",
    }
    assert promised <= marked["README.md"]
    assert promised <= marked["SPECIFICATION.md"]
    assert "metadata-and-content-bytes" in marked["ARCHITECTURE.md"]
    # In blocks of code, where marks would be seen.
    plain = {(file, name) for file, _, name in counts.PLAIN}
    assert {("CONTRIBUTING.md", n) for n in ("seeds-check", "kill-rounds-long", "fuzz-minutes-long")} <= plain
    for path in counts.documents():
        text = counts.MARK.sub("", path.read_text())
        assert "<!-- n:" not in text and "<!-- /n" not in text, f"{path}: a mark without its end"


def test_a_wrong_number_is_named_and_put_right(monkeypatch):
    monkeypatch.setitem(counts.COUNTS, "planted-bugs", lambda: 1031)
    text = "found <!-- n:planted-bugs -->15<!-- /n --> of 17 formats"
    assert counts.corrected(text, [(r"of (\d+) formats", "planted-bugs")]) == (
        "found <!-- n:planted-bugs -->1,031<!-- /n --> of 1,031 formats",
        [("planted-bugs", "17", "1,031"), ("planted-bugs", "15", "1,031")],
    )
    for wrong, said in (("<!-- n:bugs -->1<!-- /n -->", "by the name bugs"), ("", "nothing is like")):
        with pytest.raises(counts.Unknown, match=said):
            counts.corrected(wrong, [] if wrong else [("x", "planted-bugs")])


def test_a_source_that_looks_otherwise_is_an_error():
    with pytest.raises(counts.Unknown, match="has 0 places"):
        counts.whole("scripts/test.sh", r"^no such line (\d+)$")
    with pytest.raises(counts.Unknown, match="speak of minutes"):
        counts.minutes("crates/testkit/tests/planted.rs", r"ELSEWHERE: \[Bug; (\d+)\]")
    with pytest.raises(counts.Unknown, match="no row"):
        counts.ratio("latest.md", "vhost-user-blk", "7 KiB random")


def test_the_constants_are_those_that_the_programs_have():
    """The seconds of fuzzing and the rounds of kill -9 are read by a pattern: held against what Python itself makes of
    it."""
    import test_kill

    asked = {test_kill.ROUNDS, *(int(counts.value(n)) for n in ("kill-rounds", "kill-rounds-long"))}
    assert len(asked) == 2
    assert int(counts.value("kill-rounds")) >= 50, "what was asked for"
    assert re.search(r"fuzz_seconds=%s\b" % counts.value("fuzz-seconds-long"), (ROOT / "scripts/test.sh").read_text())
