"""What the manual, the docstrings and the tutorial show is so."""

import ast
import doctest
import importlib
import pathlib
import pkgutil
import re

import nbclient
import nbformat
import pytest

import undercroft as uc

PYTHON = pathlib.Path(__file__).resolve().parents[1]
ROOT = PYTHON.parents[1]


@pytest.mark.parametrize("name", [m.name for m in pkgutil.iter_modules(uc.__path__) if not m.name.startswith("_")])
def test_examples_of_docstrings(name):
    failed, _ = doctest.testmod(importlib.import_module(f"undercroft.{name}"))
    assert failed == 0


def test_the_example_of_the_package():
    assert doctest.testmod(uc) == (0, 4)


def test_examples_of_the_manual(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uc.synth.zipf(keys=2000, requests=50_000).to_numpy("block").astype("<u8").tofile("web.u64le")
    uc.synth.loop(keys=500, requests=50_000).to_numpy("block").astype("<u8").tofile("db.u64le")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    there = {}
    for block in blocks:
        if "import ray" in block or "scheduler=" in block:
            compile(block, "docs/python.md", "exec")
        else:
            exec(compile(block, "docs/python.md", "exec"), there)


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    example, printed = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    exec(compile(example, "README.md", "exec"), {})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        line.split() for line in printed.splitlines()
    ]


def test_the_tutorial_runs(tmp_path):
    path = PYTHON / "docs/tutorial.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert all(not c.get("outputs") for c in notebook.cells), "it is kept without outputs"
    done = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = {kind for c in done.cells for out in c.get("outputs", []) for kind in out.get("data", {})}
    assert {"image/png", "text/html"} <= kinds, "it shows plots and tables"


def test_the_stub_names_what_the_engine_has():
    tree = ast.parse((pathlib.Path(uc.__path__[0]) / "_undercroft.pyi").read_text())
    engine = importlib.import_module("undercroft._undercroft")
    public = {n for n in dir(engine) if not n.startswith("_")}
    stubbed = {n.name: n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    assert {n for n in stubbed if not n.startswith("_")} == public
    for name in ("Source", "Batches", "Curve"):
        of_stub = {n.name for n in stubbed[name].body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}
        assert of_stub == {n for n in vars(getattr(engine, name)) if not n.startswith("_")}, name
    assert (pathlib.Path(uc.__path__[0]) / "py.typed").exists()


def test_everything_that_is_named_is_there():
    for name in uc.__all__:
        assert getattr(uc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        uc.nothing
