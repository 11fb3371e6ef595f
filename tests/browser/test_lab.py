"""JupyterLab as `make lab` opens it: pictures of a saved notebook, Cancel, Reset, a clean repository, the command."""

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest
from chromium import IN_BROWSER
from lab import ROOT, running_lab
from test_lesson import FAILURES, FIGURE, open_notebook, page, run_all_cells, wait_until_run  # noqa: F401

from workbench.launch.fork_server import WARM_VARIABLE

pytestmark = IN_BROWSER

EXPLORER = "from workbench.explore import cupcake as lesson\nexplorer = lesson.FusionExplorer()\nexplorer"
LONG_CALL = """
import time
from workbench.explore import check
from workbench.launch import Ranks
from workbench.rows.progress import say_progress
def train():
    for step in range(1000):
        time.sleep(0.1)
        say_progress(step + 1, 1000, "steps", loss=1 / (step + 1))
ranks = Ranks(2)
ranks.run(train)
"""


@pytest.fixture
def folders(tmp_path):
    for name in ("notebooks", "home"):
        (tmp_path / name).mkdir()
    return tmp_path / "notebooks", tmp_path / "home"


def write(folder, *cells):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / "own.ipynb")


def save(page):  # noqa: F811
    page.keyboard.press("Control+s")
    page.locator(".jp-mod-dirty").wait_for(state="detached")


def end_kernels(lab):
    with urllib.request.urlopen(f"{lab.url}/api/sessions?token={lab.token}", timeout=30) as answer:
        sessions = json.load(answer)
    for session in sessions:
        address = f"{lab.url}/api/sessions/{session['id']}?token={lab.token}"
        urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=30).close()


def test_a_reset_brings_the_first_picture_back_and_a_saved_notebook_opens_with_the_last_one(folders, page, tmp_path):  # noqa: F811
    from playwright.sync_api import expect

    write(folders[0], EXPLORER, "%%ranks 2\nprint(rank)")
    with running_lab(*folders) as lab:
        open_notebook(page, lab.page("own.ipynb"))
        run_all_cells(page)
        wait_until_run(page)
        expect(page.locator(FAILURES)).to_contain_text("run %load_ext workbench first, also after a restart")
        first = page.locator(FIGURE).get_attribute("src")
        page.get_by_role("button", name="cut").first.click()
        expect(page.locator(FIGURE)).not_to_have_attribute("src", first)
        moved = page.locator(FIGURE).get_attribute("src")
        page.get_by_role("button", name="Reset").click()
        expect(page.locator(FIGURE)).to_have_attribute("src", first)
        page.get_by_role("button", name="cut").first.click()
        expect(page.locator(FIGURE)).to_have_attribute("src", moved)
        save(page)
        end_kernels(lab)
        page.goto("about:blank")
        open_notebook(page, lab.page("own.ipynb"))
        expect(page.locator(FIGURE)).to_have_attribute("src", moved)
        page.screenshot(path=tmp_path / "reopened.png")
        assert page.get_by_text("Error displaying widget").count() == 0
        controls = page.locator(".workbench-explorer").get_by_role("button", name="cut")
        expect(controls.first).to_be_hidden()  # no dead control, no broken link
        content = "one => getComputedStyle(one, '::before').content"
        assert page.locator(".workbench-explorer").evaluate(content) == '"Run this cell to move its controls."'
        is_marked = "one => getComputedStyle(one, '::before').display != 'none'"
        assert page.locator(".workbench-figure").evaluate(is_marked) is False


def test_cancel_works_while_the_call_runs_and_leaves_no_rank(folders, page, tmp_path, monkeypatch):  # noqa: F811
    from playwright.sync_api import expect

    monkeypatch.delenv(WARM_VARIABLE, raising=False)  # the fork server is below the kernel
    write(folders[0], LONG_CALL)
    with running_lab(*folders) as lab:
        open_notebook(page, lab.page("own.ipynb"))
        run_all_cells(page)
        bar = page.locator(".workbench-progress")
        expect(bar).to_contain_text("of 1000 steps, loss", timeout=60_000)
        page.screenshot(path=tmp_path / "running.png")
        of_ranks = [
            child for child in psutil.Process().children(recursive=True) if "fork_server" in " ".join(child.cmdline())
        ]
        bar.get_by_role("button", name="Cancel").click()
        page.get_by_text("The call has ended, and its ranks with it.").wait_for(timeout=10_000)
        page.screenshot(path=tmp_path / "cancelled.png")
        assert bar.count() == 0
        assert "KeyboardInterrupt" in page.locator(FAILURES).last.inner_text()
        _, alive = psutil.wait_procs(of_ranks, timeout=5)
        assert len(of_ranks) - len(alive) == 2, "both ranks have ended; their fork server waits for the next call"


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    for name in ("workbench", "reproductions"):  # with notebooks/ it is a root of its own
        (folder / name).symlink_to(ROOT / name)
    for name in ("Makefile", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    for name in ("pyproject.toml", "constraints.txt", "ready"):
        (folder / name).touch()
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def test_make_lab_leaves_the_repository_clean_and_its_terminal_finds_the_command(checkout, page, tmp_path):  # noqa: F811
    (tmp_path / "home").mkdir()
    output = checkout / "results" / "found"
    command = ["make", "lab", f"BIN={Path(sys.executable).parent}", f"READY={checkout / 'ready'}"]
    with running_lab(checkout, tmp_path / "home", command) as lab:
        open_notebook(page, lab.page("results/lab/cupcake/lesson.ipynb"))
        run_all_cells(page)
        wait_until_run(page)
        save(page)
        assert page.get_by_text("Jupyter news").count() == 0, "nobody is asked about news"
        assert subprocess.check_output(["git", "status", "--porcelain"], cwd=checkout, text=True) == ""
        page.locator(".lm-MenuBar-itemLabel", has_text="File").first.click()
        page.locator(".lm-Menu-itemLabel", has_text="New").first.hover()
        page.locator(".lm-Menu-itemLabel", has_text="Terminal").first.click()
        page.locator(".jp-Terminal .xterm-helper-textarea").wait_for(state="attached")
        deadline_s = time.monotonic() + 60
        while not (output.exists() and output.read_text()) and time.monotonic() < deadline_s:
            page.keyboard.type(f"command -v workbench > {output}\n")  # lost while the shell starts
            time.sleep(2)
        page.screenshot(path=tmp_path / "terminal.png")
        assert Path(output.read_text().strip()).parent == Path(sys.executable).parent
