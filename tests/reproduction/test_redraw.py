"""A recorded figure drawn again: from its record's values alone, which stay; what would compute is refused."""

import json
import shutil
from pathlib import Path

import pytest

from workbench.reproduction import ItemRun, Project, load_catalogue
from workbench.reproduction.files import figure_misfit
from workbench.reproduction.records import record_of
from workbench.reproduction.redraw import redraw

ROOT = Path(__file__).parents[2]
HELD = ("values", "verdicts", "commit", "started", "fingerprint", "parameters")


@pytest.fixture
def run(tmp_path):
    """The recorded run of figure 12 of ATP, in a project that may be written."""
    for name in ("reproductions/atp", "notebooks/atp"):
        shutil.copytree(ROOT / name, tmp_path / name)
    project = Project(tmp_path)
    (item,) = (item for item in load_catalogue(project) if item.id == "atp/fig-12/counted")
    return ItemRun(project, item, "laptop")


def test_a_figure_is_drawn_again_from_its_values_and_the_record_says_so(run):
    redraw(run)
    before = record_of(run, promoted=True)
    assert not redraw(run)  # as it is drawn now
    notebook = run.project.notebook(run.item)
    source = notebook.read_text().replace("pictures.draw_scaling(values)", "pictures.draw_scaling(values[:9])")
    notebook.write_text(source)
    assert redraw(run)
    after = record_of(run, promoted=True)
    assert all(after[name] == before[name] for name in HELD) and after["redrawn"]
    assert figure_misfit(run.promoted_figure, after) == ""
    assert after["artifact_sha256"]["figure"] != before["artifact_sha256"]["figure"]


def test_a_figure_that_needs_a_computation_is_refused(run):
    notebook, picture = run.project.notebook(run.item), run.promoted_figure.read_bytes()
    held = json.loads(notebook.read_text())
    for cell in held["cells"]:
        if "draw_scaling" in "".join(cell["source"]):
            cell["source"] = "figure = pictures.draw_scaling(counted.figure_12(num_devices))"
    notebook.write_text(json.dumps(held))
    with pytest.raises(ValueError, match="its drawing computes with"):
        redraw(run)
    assert run.promoted_figure.read_bytes() == picture
