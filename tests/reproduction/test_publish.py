"""What leaves the house: the report in one file, a static site, and records as table, references or research object."""

import csv
import json
import re
import zipfile
from collections import Counter

import pytest
from report_project import ReportProject, png, soup

from workbench.cli import exit_code
from workbench.reproduction import Project

CITATION = """
title: the toy suite
license: Apache-2.0
version: 1.0.0
date-released: 2026-01-01
authors: [{name: The authors}]
references:
  - type: article
    title: Sums of toys
    authors: [{given-names: Ada, family-names: Byron}]
    year: 2020
    url: https://example.org/toys
    notes: workbench/techniques/toy_sum
"""


@pytest.fixture
def held(held: ReportProject) -> ReportProject:
    (held.root / "CITATION.cff").write_text(CITATION)
    held.promoted(figure=png(400, 300))
    return held


def test_the_single_file_needs_no_other_and_its_links_lead_to_places_in_it(held, tmp_path):
    target = tmp_path / "one.html"
    assert exit_code(["report", "--single-file", str(target)]) == 0
    page = soup(target)
    names = Counter(tag["id"] for tag in page.find_all(id=True))
    assert set(names.values()) == {1}
    links = [link["href"] for link in page.find_all("a", href=True)]
    assert len(links) > 10 and all(link.startswith("#") and link[1:] in names for link in links)
    assert not page.find_all("script") and len(page.find_all("h1")) == 1
    assert "A1 sends half" in page.get_text()


def test_a_site_has_the_report_with_its_files_and_refuses_a_folder_that_is_not_empty(
    held, tmp_path, capsys, monkeypatch
):
    for package in ("pdoc", "jupyterlite_core", "material"):
        pytest.importorskip(package)
    target = tmp_path / "public"
    monkeypatch.setattr("workbench.reproduction.report.publish.API", ("workbench", r"!workbench\."))  # its first page
    assert exit_code(["report", "--site", str(target)]) == 0
    for page in [target / "index.html", *target.glob("docs/*.html")]:
        for link in soup(page).find_all("a", href=re.compile("^(?!https?:|#)")):
            path = page.parent / re.split("[?#]", link["href"])[0]
            assert path.is_file() or "lessons" in link["href"], f"{page}: {link}"  # this project has no lessons
    first = soup(target / "index.html")
    assert (target / "planners" / "files" / "planners.ipynb").is_file()
    (wheel,) = (target / "planners" / "pypi").glob("distributed_training_workbench-*.whl")
    assert "workbench/advisor/evidence.json" in zipfile.ZipFile(wheel).namelist()  # there are no records in a browser
    report = target / next(link["href"] for link in first.find_all("a") if link.text.strip() == "Report")
    for link in soup(report.with_name("toy-sum.html")).find_all("a", href=True):
        assert (report.parent / (link["href"].partition("#")[0] or report.name)).is_file(), link
    assert exit_code(["report", "--site", str(target)]) == 2
    assert f"{target} is not empty" in capsys.readouterr().err


def test_records_leave_as_a_table_with_both_numbers_verdict_licence_and_paper(held, tmp_path):
    target = tmp_path / "runs.csv"
    assert exit_code(["records", "export", str(target)]) == 0
    rows = list(csv.DictReader(target.read_text().splitlines()))
    half = next(row for row in rows if row["claim"] == "A1 sends half")
    assert (half["published"], half["ours"], half["verdict"]) == ("1000000.0", "1010000.0", "agrees")
    assert (half["licence"], half["paper"]) == ("Apache-2.0", "https://example.org/toys")
    assert exit_code(["records", "export", str(target)]) == 2  # nothing is overwritten


def test_references_name_the_suite_and_each_paper(held, tmp_path):
    target = tmp_path / "papers.bib"
    assert exit_code(["records", "export", str(target), "--format", "bibtex"]) == 0
    assert "@software{workbench" in target.read_text()
    assert "@article{toy_sum" in target.read_text() and "author = {Byron, Ada}" in target.read_text()


def test_a_research_object_holds_each_record_with_licence_and_the_paper_it_cites(held, tmp_path):
    pytest.importorskip("rocrate")
    target = tmp_path / "crate.zip"
    assert exit_code(["records", "export", str(target), "--format", "ro-crate"]) == 0
    with zipfile.ZipFile(target) as crate:
        graph = {entity["@id"]: entity for entity in json.loads(crate.read("ro-crate-metadata.json"))["@graph"]}
        record = graph["toy-sum/table-1/counted/full.json"]
        assert json.loads(crate.read(record["@id"]))["id"] == "toy-sum/table-1/counted"
    assert record["citation"] == {"@id": "https://example.org/toys"} and record["license"] == "Apache-2.0"
    assert graph["https://example.org/toys"]["@type"] == "ScholarlyArticle"
    assert "agrees: A1 sends half" in record["description"]


def test_an_unknown_format_or_no_record_is_refused(held, tmp_path, capsys):
    assert exit_code(["records", "export", str(tmp_path / "x"), "--format", "xml"]) == 2
    assert "format 'xml' is unknown; it must be one of ro-crate, csv, bibtex" in capsys.readouterr().err
    assert exit_code(["records", "export", str(tmp_path / "x"), "fig-2"]) == 2
    assert Project(held.root).root == held.root
