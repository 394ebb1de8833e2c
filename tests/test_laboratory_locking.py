"""The laboratory of processor caches: its report on what is stored, in Markdown and as a page."""

import html.parser
import re
import sys

from harness.programs import ROOT

sys.path.insert(0, str(ROOT / "experiments"))

from locking import cells, page, report, run  # noqa: E402 - experiments/ is no package

RESULTS = ROOT / "docs" / "results"
STORED = RESULTS / "locking.json.xz"
PICTURES = ["locking.svg", "locking-cores.svg"]


def test_the_stored_results_make_the_report_that_is_there():
    """What was published says what was measured."""
    text = report.markdown(run.load(STORED), PICTURES)
    assert text == (RESULTS / "locking.md").read_text(encoding="utf-8")


def test_what_is_stored_names_no_place_of_a_machine():
    for name, cell in run.load(STORED).items():
        assert not [word for word in cell["words"] if word.startswith("/")], name
    inside = [cells.portable(str(ROOT / "build" / "a.zst")), cells.portable(str(cells.SHARED / "traces" / "b.zst"))]
    assert inside == ["build/a.zst", "../shared/traces/b.zst"]


class Seen(html.parser.HTMLParser):
    """Which elements a page has, and what it asks others for."""

    def __init__(self):
        super().__init__()
        self.rows, self.drawings, self.asked = 0, 0, []

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        self.drawings += tag == "svg"
        self.asked += [value for name, value in attrs if name == "src" or tag == "link"]


def test_the_page_has_all_tables_and_needs_no_other_file():
    text = (RESULTS / "locking.md").read_text(encoding="utf-8")
    seen = Seen()
    seen.feed(page.page(text, RESULTS))
    # Every line of a table but that below its head.
    rows = [line for line in text.splitlines() if line.startswith("|") and not re.fullmatch(r"[|:\- ]+", line)]
    assert (seen.rows, seen.drawings, seen.asked) == (len(rows), len(PICTURES), [])
