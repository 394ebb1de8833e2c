"""Packages that only a part of this one needs.

Owns the sentence that is said where one is missing. Never installs anything.
"""

from __future__ import annotations

import importlib
from typing import Any

from undercroft._undercroft import Error


def needed(module: str, what_for: str) -> Any:
    """The module, or an error that says which package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        package = module.split(".")[0]
        missing = e.name or module
        if missing.split(".")[0] != package:
            raise  # it is there, and broken
        raise Error(f"{what_for} needs {package}, which is not installed: pip install {package}") from e
