"""A record is trusted only where it belongs, and the files beside it only as they were when it was sealed."""

import json
import shutil

import pytest
from report_project import ReportProject, claim, png, soup, verdict
from toy_project import ToyProject

from workbench.reproduction import (
    Project,
    RecordError,
    diff,
    find_records,
    load_catalogue,
    load_records,
    plan,
    promote,
    read_record,
)
from workbench.reproduction.files import checksums, write_record
from workbench.reproduction.fingerprint import Fingerprinter
from workbench.reproduction.runner import sweep

pytestmark = pytest.mark.timeout(30)
ITEM, OTHER = "toy/table-1/counted", "toy/table-2/counted"
DECLARED = (
    'Reproduction(item="{0}", notebook="notebooks/toy/one.ipynb", parameters=PARAMETERS, claims=(WITHIN,), **ITEM)'
)
FILES = {"notebook": "notebook.ipynb", "figure": "figure.png", "log": "log.txt", "trace": None}


@pytest.fixture
def held(tmp_path) -> ReportProject:
    return ReportProject(tmp_path / "project")


def sealed(toy: ToyProject, id=ITEM, profile="laptop", folder=None, **more) -> dict:
    """Write a record with the fingerprint of now and three files beside it."""
    toy.declare(DECLARED.format("table-1"), DECLARED.format("table-2"))
    folder = folder or toy.root / "results" / profile / id
    folder.mkdir(parents=True, exist_ok=True)
    for name in filter(None, FILES.values()):
        (folder / name).write_text(f"content of {name}")
    item = next(item for item in load_catalogue(Project()) if item.id == id)
    return write_record(
        folder / "record.json",
        {
            "schema": 1,
            "id": id,
            "technique": "toy",
            "item": item.item,
            "evidence": "counted",
            "profile": profile,
            "values": [{"quantity": "bytes", "method": "A1", "value": 8.0, "unit": "bytes"}],
            "verdicts": [],
            "started": "2026-01-01T00:00:00+00:00",
            "seconds": 2.0,
            "commit": "abc",
            "artifacts": FILES,
            "artifact_sha256": checksums(folder, FILES),
            "fingerprint": Fingerprinter(Project())(item, profile),
        }
        | more,
    )


def why(toy: ToyProject, profile="laptop") -> str:
    return plan(Project(), load_catalogue(Project())[:1], profile)[0].why


# a record in the wrong place


def test_a_record_in_the_folder_of_another_item_is_refused_by_name_everywhere(toy: ToyProject):
    sealed(toy)
    shutil.copytree(toy.folder("table-1"), toy.folder("table-2"))
    path = toy.folder("table-2") / "record.json"
    said = f"{path}: refused, it is the record of {ITEM} in the place of {OTHER}"
    with pytest.raises(RecordError) as caught:
        read_record(path, id=OTHER, profile="laptop")
    assert str(caught.value) == said
    found = find_records(Project())
    assert [record["id"] for record in found.records] == [ITEM] and found.refused == (said,)
    with pytest.raises(RecordError, match="table-2/counted/record.json: refused"):
        load_records()
    for keep in (promote, diff):
        with pytest.raises(RecordError, match="table-2/counted/record.json: refused"):
            keep(Project(), "laptop")
    assert not (toy.root / "reproductions/toy/recorded").exists()
    assert plan(Project(), load_catalogue(Project()), "laptop")[1].why == f"its record is refused: {said}"


def test_a_record_in_the_folder_of_another_profile_is_refused_by_name(toy: ToyProject):
    sealed(toy, profile="smoke")
    shutil.copytree(toy.folder(profile="smoke"), toy.folder())
    with pytest.raises(RecordError, match="refused, it is of the profile smoke in the place of laptop"):
        promote(Project(), "laptop", [ITEM])
    assert "profile smoke" in find_records(Project()).refused[0] and "profile smoke" in why(toy)


def test_a_promoted_record_of_another_item_is_not_compared_with(toy: ToyProject):
    sealed(toy)
    (path,) = promote(Project(), "laptop", [ITEM])
    other = path.parent.with_name("table-2") / path.name
    other.parent.mkdir()
    shutil.copy(path, other)
    with pytest.raises(
        RecordError, match=r"recorded/laptop/table-2/counted.json: refused, it is the record of toy/table-1"
    ):
        diff(Project(), "laptop", [OTHER])


def test_a_dead_runners_folder_with_the_record_of_another_item_is_not_moved_into_place(toy: ToyProject):
    results = toy.root / "results/laptop"
    sealed(toy, folder=results / ".partial-1/toy/table-2/counted")
    sealed(toy, folder=results / ".partial-1/toy/table-1/counted")
    sweep(results)
    assert [str(path.parent.relative_to(results)) for path in results.rglob("record.json")] == [ITEM]


def test_the_report_refuses_a_record_of_another_profile_by_name(held):
    held.record(profile="smoke")
    shutil.copytree(held.root / "results/smoke", held.root / "results/laptop")
    page = soup(held.report().with_name("toy-sum.html"))
    assert verdict(page, "A1 sends half") == "○NOT RUN"
    assert (
        "table-1/counted/record.json: refused, it is of the profile smoke"
        in page.select_one("#table-1-counted").get_text()
    )


def test_the_report_does_not_show_a_promoted_record_of_another_item_beside_ours(held):
    held.promoted(values={"A1": 1500000, "plain": 2000000})
    held.record()
    full = held.root / "reproductions/toy_sum/recorded/full"
    assert "Recorded full run" in claim(soup(held.report().with_name("toy-sum.html")), "A1 sends half").get_text()
    path = full / "table-1/counted.json"
    write_record(path, json.loads(path.read_text()) | {"id": "toy-sum/table-9/simulated"})
    page = soup(held.report().with_name("toy-sum.html"))
    assert "Recorded full run" not in claim(page, "A1 sends half").get_text()
    assert (
        f"{path}: refused, it is the record of toy-sum/table-9/simulated"
        in page.select_one("#table-1-counted").get_text()
    )


# what lies beside a record


def test_a_record_whose_files_are_as_they_were_is_up_to_date(toy: ToyProject):
    record = sealed(toy)
    # printf 'content of log.txt' | sha256sum
    assert record["artifact_sha256"]["log"] == "6f47c524008c4f8efc0aad34f2a0e5aac9f2939452d9990045b1d206c775cd18"
    assert sorted(record["artifact_sha256"]) == ["figure", "log", "notebook"]
    assert why(toy) == "up to date"


@pytest.mark.parametrize("name", ["notebook.ipynb", "figure.png", "log.txt"])
def test_a_file_beside_a_record_that_changed_or_is_missing_makes_it_run_again_and_is_named(toy: ToyProject, name):
    sealed(toy)
    (toy.folder() / name).write_text(f"Content of {name}")
    assert why(toy) == f"{name} is not the file that its record was sealed with"
    (toy.folder() / name).unlink()
    assert why(toy) == f"{name} is missing beside its record"


def test_a_record_that_says_nothing_of_the_content_of_its_files_runs_again(toy: ToyProject):
    sealed(toy, artifact_sha256={})
    assert why(toy) == "notebook.ipynb has no checksum in its record"


@pytest.mark.parametrize(
    ("name", "title"), [("figure.png", "Figure"), ("notebook.ipynb", "Notebook"), ("log.txt", "Log")]
)
def test_the_report_refuses_a_changed_file_by_name_and_shows_the_others(held, name, title):
    held.record()
    page = soup(held.report(notebooks=True).with_name("toy-sum.html"))
    titles = ["Notebook", "Figure", "Log", "Record"]
    assert [link.get_text() for link in page.select("nav.files a")] == ["Notebook, to read", *titles]
    (held.folder("table-1") / name).write_bytes(png(720, 300))
    page = soup(held.report(notebooks=True).with_name("toy-sum.html"))
    links = [link.get_text() for link in page.select("nav.files a")]
    assert title not in links and set(titles) - {title} <= set(links)
    assert ("Notebook, to read" in links) == (name != "notebook.ipynb")
    assert bool(page.select("figure.shot")) == (name != "figure.png")
    assert f"{name} is not the file that its record was sealed with" in page.select_one("#table-1-counted").get_text()
    assert verdict(page, "A1 sends half") == "✓AGREES"  # the values are the record's own


def test_what_is_expected_by_definition_is_shown_as_such(held):
    catalogue = held.root / "reproductions/toy_sum/catalogue.py"
    changed = catalogue.read_text().replace(
        'Within("A1 sends half", quantity="bytes",', 'Within("A1 sends half", quantity="bytes", expected=1e6,'
    )
    catalogue.write_text(changed)
    held.record()
    section = claim(soup(held.report().with_name("toy-sum.html")), "A1 sends half")
    assert section.select_one("td[data-label='By definition']").get_text() == "1 MB"
    assert [head.get_text() for head in section.select("thead th")][1:3] == ["By definition", "Ours"]
    assert "within 2 % of 1,000,000, expected by definition" in section.get_text().lower()
