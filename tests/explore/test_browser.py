"""Planners and puzzles without torch, ranks and compiled code, as in a browser."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Stand-ins come before what is there; the last cell of the notebook is reached without one of them being used.
PROGRAM = """
import sys
import nbformat
from workbench.explore import browser
browser.install()
sys.meta_path.insert(0, sys.meta_path.pop())
cells = nbformat.read("notebooks/planners.ipynb", as_version=4).cells
own = {}
for cell in cells:
    if cell.cell_type == "code" and "await" not in cell.source:
        exec(cell.source, own)
import runpy
import torch
from workbench.compression import TopK
assert not hasattr(torch, "__file__")
solved = runpy.run_path("notebooks/cupcake/solutions.py")
print(own["cupcake"].check_link_free(solved["link_free"]))
print(own["cupcake"].FusionExplorer().status)
for call in (lambda: torch.zeros(3), lambda: TopK(1), lambda: TopK(len)):
    try:
        call()
    except browser.NotInBrowser as error:
        print(error)
"""


def test_all_planners_and_puzzles_run_without_what_a_browser_lacks():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    exercise, status, *refused = ran.stdout.splitlines()
    assert exercise.startswith("right.") and "the best 18.70 ms" in status
    needed = "needs torch, which a browser does not have: open this in JupyterLab"
    assert refused == [f"zeros {needed}", f"TopK {needed}", f"TopK {needed}"]
