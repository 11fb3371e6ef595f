"""Formulas of a notebook are drawn in its page; what cannot be drawn stays as TeX without dollar signs."""

import json

import pytest
from bs4 import BeautifulSoup
from report_project import ReportProject

from workbench.reproduction.report import formula_html

pytestmark = pytest.mark.timeout(30)


def test_formulas_of_an_executed_notebook_are_drawn(tmp_path):
    from nbformat.v4 import new_markdown_cell, new_notebook

    held = ReportProject(tmp_path / "project")
    text = "Of $a \\le b$ and\n\n$$\\frac{a}{b}$$\n\nand `$PATH`, $\\underbrace{a<b}_{c}$."
    held.record(notebook=json.dumps(new_notebook(cells=[new_markdown_cell(text)])))
    page = BeautifulSoup(
        (held.report(notebooks=True).parent / "notebooks/toy-sum-table-1-counted.html").read_text(), "html.parser"
    )
    body = page.select_one(".notebook")
    assert [drawing["aria-label"] for drawing in body.select("svg.math")] == [r"a \le b", r"\frac{a}{b}"]
    assert body.select_one("svg.math.block")["aria-label"] == r"\frac{a}{b}"
    assert body.select_one("code.math").get_text() == r"\underbrace{a<b}_{c}"
    assert body.get_text().count("$") == 1  # that of the shell's variable


def test_a_fraction_is_taller_than_a_letter_and_hangs_below_the_line():
    heights = [
        float(BeautifulSoup(formula_html(tex), "html.parser").svg["viewbox"].split()[3])
        for tex in ("a", r"\frac{a}{b}")
    ]
    assert heights[1] > 1.5 * heights[0]
    assert "vertical-align:-" in formula_html(r"\frac{a}{b}")
