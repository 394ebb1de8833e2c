"""The report as a page for browsers, with its pictures in it.

Owns its look. Never changes a word of the report. Invariant: the page needs no other file.
"""

import html
import re

import markdown

STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #ccc; padding: .2rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { background: #f2f2f2; position: sticky; top: 0; white-space: normal; }
svg { max-width: 100%; height: auto; }
code { background: #f2f2f2; padding: 0 .2rem; }
"""


def picture(path):
    """A drawing, without what only a file of its own has before it."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def page(text, folder):
    """The page of a report in Markdown, whose pictures are drawings (SVG) in `folder`."""
    title = html.escape(re.search(r"^# (.+)$", text, re.MULTILINE)[1])
    body = markdown.markdown(text, extensions=["tables", "toc"])
    body = re.sub(r'<img alt="[^"]*" src="([^"/]+\.svg)" ?/?>', lambda m: picture(folder / m[1]), body)
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'
