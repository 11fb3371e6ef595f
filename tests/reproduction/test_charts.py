"""The rows behind a figure lie in the page for its chart, whose script the policy knows; a single file has neither."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from report_project import FIGURE, ReportProject, technique

from workbench.plots.style import COLORS, PALETTE
from workbench.reproduction import report
from workbench.reproduction.report import single_file

CHARTS = Path(report.__file__).parent / "templates/charts.js"


@pytest.fixture
def held(tmp_path) -> ReportProject:
    held = ReportProject(tmp_path)
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


def test_the_policy_knows_the_one_script_and_a_single_file_has_no_chart(held, tmp_path):
    first = held.report()
    page = first.with_name("toy-sum.html").read_text()
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.S)
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}';" in page
    single_file(first, tmp_path / "whole.html")
    assert "<script" not in (tmp_path / "whole.html").read_text()


def test_the_colours_of_charts_are_those_of_pictures():
    script = CHARTS.read_text()
    colors = {name: color for color, names in re.findall(r'"(#\w+)": "(.+)",', script) for name in names.split(", ")}
    assert colors == COLORS
    assert tuple(json.loads(re.search(r"PALETTE = (\[.*\]);", script)[1])) == PALETTE
