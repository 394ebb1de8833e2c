"""What all experiments have in common.

Owns the form: an experiment has arms, which are run one after the other, again and again; each run of an arm is plain
JSON data. Never draws or judges.
"""

from dataclasses import dataclass
from pathlib import Path

from rig.screen import Screen

from . import images
from .clients import Clients
from .served import Served


@dataclass
class Lab:
    """The programs, and where things are put."""

    undercroft: Path
    driver: Path
    work: Path
    screen: Screen
    quick: bool

    def image(self, name, mib):
        return images.image(self.work / "images", name, mib, self.screen.say)

    def serve(self, store_mib, vms, **options):
        """A daemon, as a context manager."""
        return Served(self.undercroft, store_mib, vms, log=self.work / "undercroft.log", **options)

    def clients(self, served):
        """Clients of a daemon, as a context manager."""
        return Clients(self.driver, served, self.work / "undercroft-driver.log")


class Absent(Exception):
    """This build has no such thing; the message says which."""

    where = "in this build"


class Lacking(Absent):
    """This machine lacks something; the message says what, and what to do."""

    where = "on this machine"


class Experiment:
    """One experiment. `arms` maps keys to titles; `repeated` is how often the arms are run, of what was asked for: 0
    where none are compared, so that one run is enough."""

    id = title = ""
    repeated = 1.0

    def __init__(self, lab):
        self.lab = lab

    @property
    def arms(self):
        raise NotImplementedError

    def explains(self):
        """What is done, in words and numbers."""
        raise NotImplementedError

    def numbers(self):
        """Sizes and the like that the report needs."""
        return {}

    def present(self):
        """Arms that could not be run once, and could be now."""
        return []

    def run(self, arm):
        """One run of an arm."""
        raise NotImplementedError
