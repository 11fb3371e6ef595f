"""A recorded run stands beside this machine's own: its verdicts, values, spread, explanation and figure."""

import base64
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from report_project import ReportProject, claim, index, png, row, technique, verdict

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def held(tmp_path: Path) -> ReportProject:
    return ReportProject(tmp_path / "project")


def test_a_recorded_full_run_stands_beside_the_laptop_run_with_machine_and_date(held):
    held.record()
    held.promoted(values={"A1": 1500000, "plain": 2000000})
    section = claim(technique(held), "A1 sends half")
    assert row(technique(held), "A1 sends half", "A1")["Recorded full run"] == "1.5 MB"
    told = next(p.get_text() for p in section.select("p") if p.get_text().startswith("Recorded full run"))
    assert "✕DISAGREES" in told and "Large processor, 64 cores, Some GPU" in told and "2026-01-02" in told
    assert verdict(technique(held), "A1 sends half") == "✓AGREES"  # the laptop run's own


def test_the_recorded_value_stands_with_its_spread_also_where_ours_has_none(held):
    held.record()
    held.promoted(values={"A1": (1500000, 1400000, 1700000), "plain": 2000000})
    page = technique(held)
    assert row(page, "A1 sends half", "A1")["Recorded full run"] == "1.5 MB (1.4 MB to 1.7 MB)"
    assert row(page, "A1 sends half", "A1")["Ours"] == "1.01 MB"
    assert row(page, "A1 sends least", "plain")["Recorded full run"] == "2 MB"
    (wrapped,) = claim(page, "A1 sends half").select("td[data-label='Recorded full run']")
    assert "wide" in wrapped["class"]  # so that a phone can break the line


def test_the_first_page_counts_the_verdicts_of_recorded_runs_by_item_and_by_technique(held):
    held.record()
    held.promoted(values={"A1": 1500000, "plain": 2000000})
    page = index(held)
    item = next(line for line in page.select("li.line") if "table-1/counted" in line.get_text())
    told = [" ".join(each.get_text().split()) for each in item.select("p.tally")]
    assert told == ["Recorded full run: ✕1 DISAGREES ✓1 AGREES"]
    short = " ".join(page.select_one("#short").parent.get_text().split())
    assert "Recorded full run of 1 item: ✕1 DISAGREES ✓1 AGREES" in short


def test_what_runs_found_stands_first_and_the_recorded_run_speaks_for_the_item(held):
    held.record(finding="A1 sends 1.01 MB.")
    held.promoted(values={"A1": 1500000, "plain": 2000000}, finding="A1 sends 1.5 MB.")
    page = technique(held)
    told = [" ".join(line.get_text().split()) for line in page.select("article .finding")]
    assert told == [
        "Found: A1 sends 1.01 MB. (this run)",
        "Found: A1 sends 1.5 MB. (recorded full run, 2026-01-02 03:04)",
    ]
    for where in (page.select_one("header .finding"), index(held).select_one("#short").parent):
        assert "A1 sends 1.5 MB." in where.get_text() and "1.01" not in where.get_text()


def test_a_run_without_a_finding_shows_none_and_smoke_never_does(held):
    held.record()
    held.record(profile="smoke", finding="Half of everything.")
    assert not technique(held).select(".finding")
    assert "Half of everything" not in index(held, "smoke").get_text()


def test_a_stand_in_finds_nothing(held):
    held.record(
        finding="Half of everything.", data=[{"name": "sentences", "source": "stand-in", "detail": "generated"}]
    )
    assert not technique(held).select(".finding") and "Half of everything" not in index(held).get_text()


def test_where_nothing_ran_here_the_report_is_that_of_the_recorded_runs(held):
    held.promoted(values={"A1": 1500000, "plain": 2000000}, figure=png(400, 300))
    page = index(held)
    assert (
        page.select_one(".headline").get_text() == "Nothing ran on this machine yet: these are the recorded runs, full."
    )
    assert (
        not page.select(".tiles")
        and not page.select("#ran")
        and "NOT RUN" not in page.select_one("#t-toy-sum ~ div").get_text()
    )
    (thumbnail,) = page.select("a.thumb")
    file, anchor = thumbnail["href"].split("#")
    assert (
        technique(held).find(id=anchor).img
        and file == "toy-sum.html"
        and thumbnail.img["src"].startswith("data:image/png")
    )


def test_a_failure_here_is_told_also_where_only_recorded_runs_have_verdicts(held):
    held.promoted(values={"A1": 1500000, "plain": 2000000})
    held.fail("fig-2", "ValueError: no text")
    assert index(held).select(".tiles") and "no text" in index(held).select_one("#failures ~ div").get_text()


def shown(page: BeautifulSoup) -> list[bytes]:
    """Return the pictures of an item in the order in which they stand."""
    images = page.select("#table-1-counted figure.shot img")
    return [base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) for image in images]


def test_the_figure_of_the_recorded_run_stands_below_ours_with_its_profile_machine_and_date(held):
    held.record(figure=png(720, 360))
    held.promoted(figure=png(400, 300))
    page = technique(held)
    assert shown(page) == [png(720, 360), png(400, 300)]
    ours, recorded = (caption.get_text() for caption in page.select("#table-1-counted figcaption"))
    assert ours.startswith("Laptop run, Two-core processor, 2 cores, 2026-01-02")
    assert recorded.startswith("Recorded full run, Large processor, 64 cores, Some GPU, 2026-01-02")
    link = page.select("#table-1-counted figcaption a")[1]["href"]
    promoted = held.root / "reproductions/toy_sum/recorded/full/table-1/counted.png"
    assert (held.report().parent / link).resolve() == promoted


def test_the_figure_of_the_recorded_run_is_shown_where_this_machine_has_not_run_the_item(held):
    held.promoted(figure=png(400, 300))
    assert shown(technique(held)) == [png(400, 300)]


@pytest.mark.parametrize("figure", [png(1, 1), b""])
def test_a_recorded_figure_of_another_run_is_named_and_not_shown(held, figure):
    held.record(figure=png(720, 360))
    held.promoted(figure=png(400, 300)).with_suffix(".png").write_bytes(figure)
    page = technique(held)
    assert shown(page) == [png(720, 360)]
    said = "Not shown. recorded full run: counted.png is not the file that its record was sealed with."
    assert said in page.select_one("#table-1-counted").get_text()
    assert row(page, "A1 sends half", "A1")["Recorded full run"] == "1.01 MB"


def test_a_run_recorded_without_its_figure_shows_its_values_and_says_nothing_of_a_figure(held):
    held.record(figure=png(720, 360))
    held.promoted()
    page = technique(held)
    assert shown(page) == [png(720, 360)]
    assert "Not shown" not in page.get_text()
    assert page.select_one("#table-1-counted figcaption").get_text() == "Bytes of a <message>. Open the file."


def test_a_disagreement_of_the_recorded_run_alone_is_explained_as_the_recorded_runs(held):
    held.promoted(values={"A1": 1500000, "plain": 2000000})
    folded = claim(technique(held), "A1 sends half").select_one("details")
    assert folded.summary.get_text() == "Explanation, for the recorded run"
    assert "The paper counts in another unit." in folded.get_text()
    held.record(values={"A1": 1500000, "plain": 2000000})
    section = claim(technique(held), "A1 sends half")
    assert section.get_text().count("The paper counts in another unit.") == 1 and not section.select("details")
