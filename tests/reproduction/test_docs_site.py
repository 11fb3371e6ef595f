"""The docs as a site: pages with a search, lessons that lead to their pages, badges where the repository is known."""

import json
import subprocess
from pathlib import Path

import pytest
from report_project import soup

from workbench.reproduction import UsageError
from workbench.reproduction.report.docs_site import lesson_page, repository_of, write_docs

ROOT = Path(__file__).parents[2]
LESSON = "notebooks/zen/lesson.ipynb"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("material")
    target = tmp_path_factory.mktemp("docs") / "site"
    write_docs(ROOT, target, {"Lessons": {"Zen": lesson_page(Path(LESSON))}}, "ada/fork")
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
    for page in site.rglob("*.html"):
        tags = soup(page).find_all(["img", "script", "link"])
        fetched = [tag.get("src") or tag.get("href") for tag in tags if "canonical" not in tag.get("rel", ())]
        assert not [link for link in fetched if link and "//" in link and "badge" not in link], page


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
