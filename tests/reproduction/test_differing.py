"""Two sets of records are paired item by item; numbers are told apart by their intervals, verdicts by today's rules."""

import subprocess

import pytest
from report_project import ReportProject, claim, soup, technique

from workbench.reproduction import UsageError, load_catalogue, promote
from workbench.reproduction.differing import Difference, differences, pairs, record_set

ID = "toy-sum/table-1/counted"
HALF, LEAST = "A1 sends half", "A1 sends least"


def compared(held: ReportProject, before: str, after: str) -> list[Difference]:
    items = {item.id: item for item in load_catalogue(held.project)}
    sets = [record_set(held.project, word) for word in (before, after)]
    return [difference for old, new in pairs(*sets) for difference in differences(held.project, items, old, new)]


def recorded(held: ReportProject, folder: str, **options) -> str:
    """Record table 1 in a results folder of its own and return the folder."""
    held.record(**options)
    (held.root / "results").rename(held.root / folder)
    return str(held.root / folder)


def test_verdicts_and_numbers_that_differ_are_told_with_their_intervals(held):
    before = recorded(held, "one", values={"A1": (1.0e6, 0.9e6, 1.1e6), "plain": (2.0e6, 1.9e6, 2.1e6)})
    after = recorded(held, "other", values={"A1": (1.2e6, 1.15e6, 1.25e6), "plain": (2.05e6, 1.95e6, 2.2e6)})
    verdict, a1, plain = compared(held, before, after)
    assert (verdict.what, verdict.name, verdict.before, verdict.after) == ("verdict", HALF, "agrees", "disagrees")
    assert (a1.name, a1.told_apart) == ("bytes method=A1", True)
    assert a1.after == {"value": 1.2e6, "low": 1.15e6, "high": 1.25e6, "unit": "bytes"}
    assert (plain.name, plain.told_apart) == ("bytes method=plain", False)  # 1.9 to 2.1 and 1.95 to 2.2
    assert compared(held, before, before) == []
    assert compared(held, f"{before}/laptop/{ID}/record.json", after) == [verdict, a1, plain]


def test_a_number_that_only_one_record_has_and_another_machine_are_differences(held):
    before = recorded(held, "one")
    after = recorded(held, "other", values={"A1": 1010000}, machine={"cpu": "Large processor"})
    named = [(difference.what, difference.name, difference.after) for difference in compared(held, before, after)]
    assert ("value", "bytes method=plain", None) in named and ("machine", "cpu", "Large processor") in named
    assert ("verdict", LEAST, "not run") in named


def test_recorded_runs_are_compared_between_commits_and_profiles(held):
    git = ["git", "-C", str(held.root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    for value in (1.0e6, 1.2e6):
        held.promoted(values={"A1": value, "plain": 2.0e6})
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "Records"], check=True)
    verdict, a1 = compared(held, "HEAD~1", "HEAD")
    assert (verdict.before, verdict.after, a1.before["value"]) == ("agrees", "disagrees", 1.0e6)
    assert compared(held, "HEAD", "full") == []
    held.promoted(profile="laptop", values={"A1": 1.0e6, "plain": 2.0e6})
    assert compared(held, "laptop", "full") == [verdict, a1]  # one profile on each side: paired by the item alone
    with pytest.raises(UsageError, match="'HEAD~7' is no folder, no file, no commit and no profile"):
        record_set(held.project, "HEAD~7")


def test_a_record_that_was_changed_is_refused_by_name_and_the_others_are_compared(held):
    folder = recorded(held, "one")
    path = held.root / f"one/laptop/{ID}/record.json"
    path.write_text(path.read_text().replace("1010000", "1000000"))
    (line,) = record_set(held.project, folder).refused
    assert line == f"{path}: refused, its checksum does not fit its content"


def test_a_record_of_a_further_machine_stands_beside_the_projects_own_and_does_not_speak(held):
    held.record(values={"A1": 1.2e6, "plain": 2.0e6}, machine={"cpu": "Laboratory processor"})
    (path,) = promote(held.project, "laptop", machine="lab")
    assert path == held.root / "reproductions/toy_sum/recorded/laptop-on-lab/table-1/counted.json"
    held.promoted(profile="laptop", values={"A1": 1.0e6, "plain": 2.0e6})
    section = claim(technique(held), HALF)
    assert "AGREES" in section.summary.get_text() and "DISAGREES" not in section.summary.get_text()
    assert [cell.get_text() for cell in section.select("thead th")][2:5] == [
        "Recorded laptop run",
        "Difference",
        "Recorded laptop-on-lab run",
    ]
    assert "Laboratory processor" in section.get_text()
    assert list(record_set(held.project, "laptop").records) == [(ID, "laptop")]


def test_the_report_has_a_page_of_what_differs_from_the_recorded_run(held):
    held.promoted(profile="laptop", values={"A1": 1.0e6, "plain": 2.0e6})
    first = held.report()
    assert not first.with_name("compare.html").exists()  # nothing ran here
    held.record(values={"A1": 1.2e6, "plain": 2.0e6})
    first = held.report()
    assert soup(first).select_one('a[href="compare.html"]')
    page = soup(first.with_name("compare.html"))
    rows = [[cell.get_text() for cell in row.select("th, td")] for row in page.select("tbody tr")]
    assert rows == [[f"verdict {HALF}", "agrees", "disagrees", ""], ["bytes method=A1", "1 MB", "1.2 MB", "+20 %"]]
    assert "Told apart: 1 verdicts, 1 values" in page.select_one(".headline").get_text()
    assert not page.select("script")
