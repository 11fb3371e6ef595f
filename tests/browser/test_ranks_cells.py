"""Cells on ranks in a real JupyterLab and a real browser: live tabs, and an interrupt button that works meanwhile."""

import nbformat
from chromium import IN_BROWSER, open_page
from lab import running_lab
from test_lesson import FAILURES, KERNEL_IS_IDLE, OPEN_TIMEOUT_MS, open_notebook, run_all_cells

RUN_TIMEOUT_MS = 60_000
CELLS = [
    "%load_ext workbench",
    "%%ranks 2\nx = rank + 5\nprint('kept', x)",
    "%%ranks\nimport time, torch.distributed as dist\nprint('waiting', x, flush=True)\n"
    "dist.barrier() if rank == 0 else time.sleep(600)",
]

pytestmark = IN_BROWSER


def test_tabs_fill_while_the_cell_runs_and_the_buttons_work_meanwhile(tmp_path):
    from playwright.sync_api import expect

    folder, home = tmp_path / "notebooks", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "ranks.ipynb")
    with running_lab(folder, home) as lab, open_page(1280, 1000) as page:
        open_notebook(page, lab.page("ranks.ipynb"))
        run_all_cells(page)
        live = page.locator(".workbench-live")
        expect(live.locator("pre").first).to_have_text("waiting 5\n", timeout=RUN_TIMEOUT_MS)
        live.get_by_text("rank 1", exact=True).click()
        expect(live.locator("pre").nth(1)).to_be_visible()
        expect(live.locator("pre").nth(1)).to_have_text("waiting 6\n")
        page.screenshot(path=tmp_path / "running.png")
        live.locator(".workbench-interrupt").click()
        error = page.locator(FAILURES)
        expect(error).to_contain_text("The cell was interrupted.", timeout=10_000)
        expect(error).to_contain_text("rank 0 stood in cell 3, line 4: dist.barrier()")
        expect(live).to_have_count(0)  # plain tabs are in its place
        page.locator(KERNEL_IS_IDLE).wait_for(timeout=OPEN_TIMEOUT_MS)
        kept = page.locator(".workbench-ranks").first
        expect(kept.locator("pre").nth(1)).to_be_hidden()
        kept.get_by_text("rank 1").click()
        expect(kept.locator("pre").nth(1)).to_have_text("kept 6\n")
        page.screenshot(path=tmp_path / "ended.png")
