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
import torch
import torch.distributed
assert not hasattr(torch, "__file__")
explorer = own["cupcake"].FusionExplorer()
print(explorer.status)
try:
    torch.zeros(3)
except browser.NotInBrowser as error:
    print(error)
"""


def test_all_planners_and_puzzles_run_without_what_a_browser_lacks():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert "the best 18.70 ms" in ran.stdout
    assert ran.stdout.endswith("zeros needs torch, which a browser does not have: open this in JupyterLab\n")
