"""Progress on a terminal: one line per guest that is redrawn in place; elsewhere a plain line now and then.

Owns standard output while a run is under way. Never raises because of what the terminal is.
"""

import shutil
import sys
import threading
import time


class Screen:
    """Status lines under ordinary output. Safe to use from several threads."""

    def __init__(self, out=sys.stdout, every_seconds=4.0):
        self.out = out
        self.live = out.isatty()
        self.every = every_seconds
        self.lines = {}
        self.drawn = 0
        self.last = {}
        self.lock = threading.Lock()

    def say(self, text=""):
        """Prints a line for good."""
        with self.lock:
            self._erase()
            print(text, file=self.out)
            self._draw()

    def status(self, name, text):
        """What `name` is doing now."""
        with self.lock:
            self.lines[name] = text
            if self.live:
                self._erase()
                self._draw()
            elif time.monotonic() - self.last.get(name, 0) >= self.every:
                self.last[name] = time.monotonic()
                print(f"  {name}: {text}", file=self.out, flush=True)

    def clear(self):
        """Ends the status lines."""
        with self.lock:
            self._erase()
            self.lines = {}

    def _erase(self):
        if self.live and self.drawn:
            self.out.write(f"\x1b[{self.drawn}F\x1b[J")
            self.drawn = 0

    def _draw(self):
        if self.live:
            width = shutil.get_terminal_size().columns
            for name, text in self.lines.items():
                self.out.write(f"  {name}  {text}"[: width - 1] + "\n")
            self.drawn = len(self.lines)
        self.out.flush()
