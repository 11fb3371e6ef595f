"""What leaves the house: the report in one file, a site with docs, records as table, references or research object."""

import csv
import json
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from report_project import ReportProject, png, soup

from workbench.cli import exit_code
from workbench.reproduction import Project, UsageError
from workbench.reproduction.report import publish
from workbench.reproduction.report.docs_site import lesson_page, repository_of, write_docs

ROOT = Path(__file__).parents[2]
LESSON = "notebooks/zen/lesson.ipynb"

pytestmark = pytest.mark.timeout(240)  # the first test that reads the site waits for it

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


def publishable(folder: Path) -> ReportProject:
    held = ReportProject(folder / "project")
    (held.root / "CITATION.cff").write_text(CITATION)
    held.promoted(figure=png(400, 300))
    return held


@pytest.fixture
def held(tmp_path: Path, monkeypatch) -> ReportProject:
    held = publishable(tmp_path)
    monkeypatch.setenv("WORKBENCH_ROOT", str(held.root))
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


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A site of one lesson, which is not executed, and of the first page of the library."""
    for package in ("pdoc", "jupyterlite_core", "material"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    held, target = publishable(folder), folder / "public"
    (held.root / LESSON).parent.mkdir(parents=True)
    shutil.copy(ROOT / LESSON, held.root / LESSON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_ROOT", str(held.root))
        patch.setenv("GITHUB_REPOSITORY", "ada/fork")
        patch.setattr(publish, "API", ("workbench", r"!workbench\."))
        patch.setattr(publish, "_write_lesson", lambda path, site: publish._write(site / lesson_page(path), b"run"))
        assert exit_code(["report", "--site", str(target)]) == 0
    return target


def links(page: Path) -> list[str]:
    """Return where a page's links lead."""
    return [link["href"] for link in soup(page).find_all("a", href=True)]


def test_every_page_is_there_and_its_words_are_found(site):
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    places = {entry["location"].partition("#")[0] for entry in entries}
    assert {f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= places
    assert {"index.html", "CHANGELOG.html", "CONTRIBUTING.html", "GLOSSARY.html"} <= places


def test_a_lesson_leads_to_its_page_from_any_depth(site):
    assert "lessons/zen-lesson.html" in links(site / "index.html")
    assert "../lessons/zen-lesson.html" in links(site / "docs/course.html")


def test_badges_open_each_lesson_of_the_course_in_the_repository(site):
    assert f"https://mybinder.org/v2/gh/ada/fork/main?labpath={LESSON}" in links(site / "docs/course.html")
    assert f"https://colab.research.google.com/github/ada/fork/blob/main/{LESSON}" in links(site / "docs/course.html")


def test_nothing_but_badges_is_fetched_from_elsewhere(site):
    for page in (*site.glob("*.html"), *site.glob("docs/*.html")):
        tags = soup(page).find_all(["img", "script", "link"])
        fetched = [tag.get("src") or tag.get("href") for tag in tags if "canonical" not in tag.get("rel", ())]
        assert not [link for link in fetched if link and "//" in link and "badge" not in link], page


def test_a_site_has_the_report_with_its_files_lessons_planners_and_the_library(site):
    for page in [site / "index.html", *site.glob("docs/*.html")]:
        for link in soup(page).find_all("a", href=re.compile("^(?!https?:|#)")):
            path = page.parent / re.split("[?#]", link["href"])[0]
            assert path.is_file() or "lessons" in link["href"], f"{page}: {link}"  # of all lessons there is one
    assert (site / "planners" / "files" / "planners.ipynb").is_file()
    assert list((site / "planners" / "pypi").glob("distributed_training_workbench-*.whl"))
    first = soup(site / "index.html")
    report = site / next(link["href"] for link in first.find_all("a") if link.text.strip() == "Report")
    for link in soup(report.with_name("toy-sum.html")).find_all("a", href=True):
        assert (report.parent / (link["href"].partition("#")[0] or report.name)).is_file(), link


def test_a_site_is_not_written_into_a_folder_that_is_not_empty(held, tmp_path, capsys):
    (tmp_path / "kept").touch()
    assert exit_code(["report", "--site", str(tmp_path)]) == 2
    assert f"{tmp_path} is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["https://github.com/ada/fork.git", "git@github.com:ada/fork", "https://x@github.com/ada/fork/"]
)
def test_the_repository_is_that_of_the_workflow_or_of_the_remote(tmp_path, monkeypatch, address):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert repository_of(tmp_path) == ""
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", address], check=True)
    assert repository_of(tmp_path) == "ada/fork"
    monkeypatch.setenv("GITHUB_REPOSITORY", "bob/own")
    assert repository_of(tmp_path) == "bob/own"


def test_a_folder_without_docs_is_refused(tmp_path):
    pytest.importorskip("material")
    with pytest.raises(UsageError, match="has no docs/"):
        write_docs(tmp_path, tmp_path / "site", {})


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
