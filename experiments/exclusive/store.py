"""Raw results: one JSON file that grows by one arm after the other.

Owns that file, which is compressed if its name ends in .xz: as all that is kept in the repository. Invariant: it is
whole at every moment (written beside and renamed), and the arms of a cell that are compared come from one run: taking
up an interrupted cell means running all of it again. `python3 experiments/exclusive/store.py FILE` prints one that is
compressed.
"""

import json
import lzma
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from exclusive.arms import ARMS  # noqa: E402

VERSION = 1


class Store:
    """The results of all cells so far, by cell id and arm."""

    def __init__(self, path):
        self.path = Path(path)
        self.data = {"version": VERSION, "cells": {}}
        if self.path.exists():
            data = load(self.path)
            if data.get("version") != VERSION:
                raise ValueError(f"{self.path} was written by another version of the laboratory: move it away")
            self.data = data
            self._name()

    def _name(self):
        """Arms are called today's names, whenever they were measured."""
        for cell in self.data["cells"].values():
            for key, record in cell["arms"].items():
                if key in ARMS:
                    record["title"] = ARMS[key].title

    def begin(self, cell, facts):
        """A new run of a cell: what was known of it is forgotten."""
        self.data["cells"][cell] = facts | {"complete": False, "arms": {}}

    def add(self, cell, arm, record):
        """Adds the result of an arm."""
        self.data["cells"][cell]["arms"][arm] = record
        self.save()

    def finish(self, cell):
        """All arms of the cell were measured, or found absent."""
        self.data["cells"][cell]["complete"] = True
        self.save()

    def done(self, cell, arms, present, repeat=1):
        """Whether a cell need not be run again: complete, with all of `arms` so many times, and none recorded as absent
        that this build has now (`present`)."""
        known = self.data["cells"].get(cell)
        if not known or not known["complete"] or known.get("repeat", 1) < repeat:
            return False
        return all(arm in known["arms"] and not ("absent" in known["arms"][arm] and arm in present) for arm in arms)

    def save(self):
        """Writes the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        text = dumps(self.data).encode()
        new.write_bytes(lzma.compress(text) if self.path.suffix == ".xz" else text)
        new.rename(self.path)


def load(path):
    """What a file of results holds, as it was written."""
    found = Path(path).read_bytes()
    return json.loads(lzma.decompress(found) if Path(path).suffix == ".xz" else found)


def dumps(data):
    """JSON with one line per arm: two of them are easy to compare."""
    head = {k: v for k, v in data.items() if k != "cells"}
    lines = [json.dumps(head, sort_keys=True)[:-1] + ', "cells": {']
    cells = list(data["cells"].items())
    for i, (cell, value) in enumerate(cells):
        facts = {k: v for k, v in value.items() if k != "arms"}
        lines.append(f"{json.dumps(cell)}: {json.dumps(facts, sort_keys=True)[:-1]}, \"arms\": {{")
        arms = list(value["arms"].items())
        for j, (arm, record) in enumerate(arms):
            lines.append(
                f"  {json.dumps(arm)}: {json.dumps(record, separators=(',', ':'))}{',' if j < len(arms) - 1 else ''}"
            )
        lines.append("}}" + ("," if i < len(cells) - 1 else ""))
    return "\n".join([*lines, "}}", ""])


if __name__ == "__main__":
    print(dumps(load(sys.argv[1])), end="")
