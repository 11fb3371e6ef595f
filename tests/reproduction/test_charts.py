"""The rows behind a figure lie in the page for its chart."""

import json
import re
from pathlib import Path

import pytest
from report_project import FIGURE, ReportProject, technique

from workbench.plots.style import COLORS, PALETTE
from workbench.reproduction import report

CHARTS = Path(report.__file__).parent / "templates/charts.js"


@pytest.fixture
def held(held: ReportProject) -> ReportProject:
    held.record(values={"A1": (1010000, 1000000, 1020000), "</script>": 2000000})
    held.promoted(figure=FIGURE)
    return held


def test_a_chart_has_the_rows_of_every_run_and_the_papers_beside_them(held):
    (chart,) = technique(held).select("details.chart")
    assert chart.has_attr("hidden")  # a browser without scripts shows the picture alone
    table = json.loads(chart.select_one("script").string)
    assert table["columns"] == ["quantity", "unit", "run", "value", "low", "high", "method"]
    assert table["rows"][0] == ["bytes", "bytes", "this run", 1010000.0, 1000000.0, 1020000.0, "A1"]
    assert [(row[2], row[3], row[6]) for row in table["rows"][1:]] == [
        ("this run", 2000000.0, "</script>"),
        ("recorded full run", 1010000.0, "A1"),
        ("recorded full run", 2000000.0, "plain"),
        ("paper", 1000000.0, "A1"),
        ("paper", 2000000.0, "plain"),
    ]


def test_the_colours_of_charts_are_those_of_pictures():
    script = CHARTS.read_text()
    colors = {name: color for color, names in re.findall(r'"(#\w+)": "(.+)",', script) for name in names.split(", ")}
    assert colors == COLORS
    assert tuple(json.loads(re.search(r"PALETTE = (\[.*\]);", script)[1])) == PALETTE
