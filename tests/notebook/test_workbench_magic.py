"""`%workbench` in a real kernel, on a small project."""

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from toy_project import ToyProject

from workbench.notebook import unloaded


@pytest.fixture(scope="module")
def toy(notebook, tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    project = ToyProject(root)
    project.declare('item("table-1")', 'item("table-2", "bad")')
    project.notebook("bad", 'raise RuntimeError("boom")')
    notebook.run(f"%env WORKBENCH_ROOT={root}\n%env WORKBENCH_DATA=")
    return project


def test_an_item_is_run_and_its_verdicts_are_shown_in_place(notebook, toy):
    before, _ = notebook.run("%workbench report toy/table-1")
    assert "not run" in before and "workbench reproduce toy/table-1/counted" in before
    after, error = notebook.run("%workbench reproduce toy/table-1")
    assert error == "" and "100% done in the profile laptop" in after
    row = next(line.split() for line in after.splitlines() if "twice the size" in line)
    assert row[3:] == ["method", "A1", "8", "B", "8", "B", "exact", "counted", "ours", "agrees"], row
    assert toy.record()["values"][0]["value"] == 8
    assert "agrees" in notebook.run("%workbench report toy/table-1")[0]
    kinds = [set(output.data) for output in notebook.file.cells[-1].outputs]
    assert kinds == [{"text/html", "text/plain"}]


def test_a_wrong_number_shows_as_disagreement_and_a_failed_item_as_an_error(notebook, toy):
    toy.sealed(value=9.0)
    assert "disagrees" in notebook.run("%workbench report table-1")[0]
    assert "toy/table-2/counted failed: RuntimeError: boom" in notebook.run("%workbench reproduce table-2")[1]


def test_wrong_use_is_one_line_and_other_commands_are_the_command_line_s(notebook, toy):
    assert "no item" in notebook.run("%workbench report table-9")[0]
    assert "takes an item's id" in notebook.run("%workbench reproduce")[0]
    assert "toy/table-2/counted" in notebook.run("%workbench list")[0]


def test_a_magic_that_is_not_loaded_says_what_to_load_and_loading_puts_it_in_place():
    shell = InteractiveShell()
    unloaded.load_ipython_extension(shell)
    for name in ("ranks", "rank", "workbench"):
        with pytest.raises(UsageError, match="run %load_ext workbench first, also after a restart"):
            shell.find_magic(name)("2")
    shell.run_line_magic("load_ext", "workbench")
    assert shell.find_cell_magic("ranks").__self__.__class__.__name__ == "RanksMagics"
