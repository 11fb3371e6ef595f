"""The planners in a browser alone: JupyterLite of the site, which fetches Python with NumPy from Pyodide's own host."""

import functools
import importlib.util
import re
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import nbformat
import pytest
from chromium import IN_BROWSER, open_page

HOST, TIMEOUT_MS = "cdn.jsdelivr.net", 300_000


def is_reachable(host):
    try:
        socket.create_connection((host, 443), timeout=3).close()
    except OSError:
        return False
    return True


pytestmark = [
    *IN_BROWSER,
    pytest.mark.skipif(not importlib.util.find_spec("jupyterlite_core"), reason="pip install -e .[publish]"),
    pytest.mark.timeout(600),
]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_all_planners_are_drawn_in_jupyterlite(tmp_path):
    from workbench.advisor.evidence import save
    from workbench.reproduction.report.publish import PLANNERS, write_planners

    if not is_reachable(HOST):
        pytest.skip(f"{HOST}, from which JupyterLite has its Python, cannot be reached")
    cells = [cell.source for cell in nbformat.read(PLANNERS, as_version=4).cells if cell.cell_type == "code"]
    num_pictures = sum(bool(re.search(r"explore_|Explorer\(", cell)) for cell in cells)
    write_planners(tmp_path / "site", save)
    handler = functools.partial(Quiet, directory=tmp_path / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, open_page(1300, 1000) as page:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{server.server_port}/lab/index.html?path=planners.ipynb")
        page.locator(".jp-CodeCell").first.wait_for(timeout=60_000)
        page.locator(".lm-MenuBar-itemLabel", has_text="Run").first.click()
        page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
        page.locator(".jp-OutputArea img").nth(num_pictures - 1).wait_for(timeout=TIMEOUT_MS)
        page.screenshot(path=tmp_path / "planners.png", full_page=True)
        server.shutdown()
