"""Diaries of trainings: reading their dates and numbers, refusing other files."""

import os
from datetime import date

import pytest

from workbench.datasets import DataError, training_logbooks

needs_diaries = pytest.mark.skipif(
    not os.environ.get("WORKBENCH_DATA"), reason="WORKBENCH_DATA names no folder with the diaries"
)
TABLE = """date,date_precision,category,event,count,lost_hours
2021-12-06,day,hardware,"hosts down, at the same time",5,
2021-11-17/2021-12-03,range,restarts,many,40,
2022-02,month,hardware_recurrent,about once a week,,3
"""


def test_a_day_a_month_and_a_range_are_read(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text(TABLE)
    events = training_logbooks.read(path)
    days = [(event.first_day, event.last_day) for event in events]
    assert days == [
        (date(2021, 12, 6), date(2021, 12, 6)),
        (date(2021, 11, 17), date(2021, 12, 3)),
        (date(2022, 2, 1), date(2022, 2, 28)),
    ]
    assert [(event.category, event.count, event.lost_hours) for event in events] == [
        ("hardware", 5, None),
        ("restarts", 40, None),
        ("hardware_recurrent", None, 3.0),
    ]


def test_what_is_no_date_is_refused(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("date,category,event\nsoon,hardware,x\n")
    with pytest.raises(ValueError, match="date is 'soon'; it must be a day, a month or a range"):
        training_logbooks.read(path)


def test_without_the_folder_there_are_no_diaries(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    with pytest.raises(DataError, match="opt_175b_events.csv is not there: WORKBENCH_DATA must name"):
        training_logbooks.load("opt-175b")
    with pytest.raises(ValueError, match="name is 'x', must be one of bloom-176b, opt-175b"):
        training_logbooks.load("x")


def test_another_file_of_that_name_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / training_logbooks.FOLDER
    folder.mkdir(parents=True)
    (folder / "opt_175b_events.csv").write_text(TABLE)
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    with pytest.raises(DataError, match="must be d0295014c164"):
        training_logbooks.load("opt-175b")


@needs_diaries
def test_the_diaries_say_what_is_known_of_them():
    opt, bloom = (training_logbooks.load(name) for name in ("opt-175b", "bloom-176b"))
    assert (len(opt.events), len(bloom.events)) == (19, 20)
    assert [event.count for event in opt.events if "over the 12.xx lineage" in event.text] == [90]
    assert [event.lost_hours for event in bloom.events if "one GPU crashed" in event.text] == [7.3]
    assert opt.source.is_real
