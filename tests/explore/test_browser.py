"""Planners, puzzles and the advisor without torch, ranks, compiled code and records, as in a browser."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from workbench.advisor.evidence import save
from workbench.explore.browser import ABSENT

ROOT = Path(__file__).parents[2]
IMPORTED = {"pyyaml": "yaml", "pyzmq": "zmq", "scikit-learn": "sklearn"}  # where names differ
THERE = ("ipykernel", "ipywidgets", "pillow")  # the notebook, JupyterLite and matplotlib bring them
# Stand-ins come before what is there; the last cell of the notebook is reached without one of them being used.
PROGRAM = """
import json
import sys
from pathlib import Path
import ipykernel
import ipywidgets
absent, saved = sys.argv[1:]
for name in set(json.loads(absent)) - set(sys.modules):
    sys.modules[name] = None  # an import of it raises ModuleNotFoundError
from workbench.explore import browser
browser.install()
sys.meta_path.insert(0, sys.meta_path.pop())
from workbench.advisor import evidence
evidence.SAVED = Path(saved)
evidence.Project = None
own = {}
for cell in json.loads(Path("notebooks/planners.ipynb").read_text())["cells"]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "code" and "await" not in source:
        exec(source, own)
import runpy
import torch
from workbench.compression import TopK
assert not hasattr(torch, "__file__")
solved = runpy.run_path("notebooks/cupcake/solutions.py")
print(own["explore"].advise().status)
print(own["cupcake"].check_link_free(solved["link_free"]))
print(own["cupcake"].FusionExplorer().status)
for call in (lambda: torch.zeros(3), lambda: TopK(1), lambda: TopK(len)):
    try:
        call()
    except browser.NotInBrowser as error:
        print(error)
"""


def test_all_planners_and_puzzles_run_without_what_a_browser_lacks(tmp_path):
    save(tmp_path)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lacking = [re.split(r"[^\w-]", line)[0] for line in needed if "emscripten" in line]
    absent = [IMPORTED.get(name, name.replace("-", "_")) for name in lacking if name not in THERE]
    given = [json.dumps([name for name in absent if name not in ABSENT]), str(tmp_path / "evidence.json")]
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *given], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    advice, exercise, status, *refused = ran.stdout.splitlines()
    assert advice.startswith("Advice: ") and "need compiled code" in advice and "settings" in advice
    assert exercise.startswith("right.") and "the best 18.70 ms" in status
    needed = "needs torch, which a browser does not have: open this in JupyterLab"
    assert refused == [f"zeros {needed}", f"TopK {needed}", f"TopK {needed}"]
