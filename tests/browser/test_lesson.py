"""Every lesson in a real JupyterLab and a real browser: it runs, and its control moves the figure."""

import shutil
import urllib.request
from pathlib import Path

import psutil
import pytest
from chromium import IN_BROWSER, open_page
from lab import running_lab

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SLIDERS = {  # one control of each lesson
    "activation_compression": "bandwidth-bytes-per-s",
    "atp": "inside",
    "cupcake": "encode",
    "espresso": "inside-gbit",
    "flextp": "skewness",
    "gemini": "reserved-mib",
    "sdpipe": "window",
    "zen": "slots",
}

OPEN_TIMEOUT_MS = 60_000
RUN_TIMEOUT_MS = 120_000
REDRAW_TIMEOUT_MS = 20_000

KERNEL_IS_IDLE = "#jp-main-statusbar :text('| Idle')"  # shown once the notebook has its kernel
FIGURE = ".workbench-figure img"
FAILURES = ", ".join(f".jp-Notebook [data-mime-type='application/vnd.jupyter.{name}']" for name in ("stderr", "error"))

CUT_OFF = """() => [...document.querySelectorAll('.workbench-explorer :is(.widget-readout, .widget-label)')]
    .filter(one => one.scrollWidth > one.clientWidth + 1
        || one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right + 1)
    .map(one => one.textContent)"""  # labels and read-outs that leave their place

pytestmark = IN_BROWSER


@pytest.fixture
def lab(tmp_path, technique):
    folder, home = tmp_path / "notebooks", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    shutil.copy(NOTEBOOKS / technique / "lesson.ipynb", folder)
    with running_lab(folder, home) as server:
        yield server


@pytest.fixture
def page(tmp_path):
    with open_page(1280, 1000) as page:
        yield page
        page.screenshot(path=tmp_path / "last.png")


def open_notebook(page, address):
    page.goto(address, timeout=OPEN_TIMEOUT_MS)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=OPEN_TIMEOUT_MS)
    page.locator(KERNEL_IS_IDLE).wait_for(timeout=OPEN_TIMEOUT_MS)


def run_all_cells(page):
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click(timeout=OPEN_TIMEOUT_MS)
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()


def wait_until_run(page):
    """Wait until every code cell has a number, or one has failed."""
    page.wait_for_function(
        """failures => {
            const prompts = [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')];
            const has_run = prompt => /\\[\\d+\\]:/.test(prompt.textContent);
            return document.querySelector(failures) || (prompts.length > 0 && prompts.every(has_run));
        }""",
        arg=FAILURES,
        timeout=RUN_TIMEOUT_MS,
    )


@pytest.mark.parametrize("technique", SLIDERS)
def test_the_lesson_runs_in_a_browser_and_its_control_changes_the_figure(lab, page, tmp_path, technique):
    from playwright.sync_api import expect

    open_notebook(page, lab.page("lesson.ipynb"))
    run_all_cells(page)
    wait_until_run(page)
    assert page.locator(FAILURES).all_inner_texts() == []
    for width in (1280, 760):
        page.set_viewport_size({"width": width, "height": 1000})
        assert page.evaluate(CUT_OFF) == []

    control = page.locator(f".workbench-control-{SLIDERS[technique]}")
    explorer = page.locator(".workbench-explorer").filter(has=control)
    figure, status = explorer.locator(FIGURE), explorer.locator(".workbench-status [role=status]")
    figure.scroll_into_view_if_needed()
    before_figure, before_status = figure.get_attribute("src"), status.inner_text()
    page.screenshot(path=tmp_path / "before.png")
    control.locator("[role=slider]").focus()
    page.keyboard.press("ArrowLeft")
    expect(figure).not_to_have_attribute("src", before_figure, timeout=REDRAW_TIMEOUT_MS)
    expect(status).not_to_have_text(before_status, timeout=REDRAW_TIMEOUT_MS)
    expect(status).not_to_have_text("computing …", timeout=REDRAW_TIMEOUT_MS)
    page.screenshot(path=tmp_path / "after.png")


def test_the_server_and_its_kernels_are_gone_when_a_test_fails(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    of_others = set(psutil.Process().children(recursive=True))
    with pytest.raises(ZeroDivisionError), running_lab(tmp_path, home) as lab:
        start = urllib.request.Request(f"{lab.url}/api/kernels?token={lab.token}", data=b"{}", method="POST")
        urllib.request.urlopen(start, timeout=30).close()
        family = set(psutil.Process().children(recursive=True)) - of_others
        assert len(family) >= 2, "the server and its kernel"
        raise ZeroDivisionError
    assert [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
