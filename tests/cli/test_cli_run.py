"""`reproduce` says what it will do, does it, keeps the report current, and ends with the right exit code."""

import json
import signal
import time

import pytest
from bs4 import BeautifulSoup

from workbench.cli import exit_code
from workbench.reproduction import Project, load_catalogue

pytestmark = pytest.mark.timeout(90)


def report(line, profile: str = "laptop") -> BeautifulSoup:
    return BeautifulSoup((line.root / f"results/{profile}/report/index.html").read_text(), "html.parser")


def test_a_dry_run_says_what_would_run_and_why_and_writes_nothing(line, capsys):
    assert exit_code(["reproduce", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "it has no record" in text and "not declared for laptop; it has full" in text
    assert "2 of 3 items would run in the profile laptop, about 6 s" in text
    assert not (line.root / "results").exists()


def test_a_run_tells_its_time_first_fails_one_item_and_goes_on_then_does_nothing_and_reports_promotes_and_cleans(line, capsys):
    code, out, err = line.run("reproduce")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("2 of 3 items to run in the profile laptop: about ") and "1 not declared for it" in lines[0]
    assert any(text.startswith("toy/table-1/counted  COUNTED   ✓ 1 agrees") for text in lines)
    assert any(text.startswith("toy/table-2/counted  COUNTED   failed RuntimeError: boom") for text in lines)
    assert lines[-1] == f"Report: {line.root}/results/laptop/report/index.html"
    assert "boom" in report(line).select_one("#failures ~ div").get_text()
    assert not report(line).select_one("meta[http-equiv=refresh]")

    began = time.monotonic()
    assert line.heavy_imports("reproduce", "table-1") == "Nothing to do: 1 up to date in the profile laptop. (--fresh runs it again.) [] 0"
    assert time.monotonic() - began < 5

    published = line.root / "reproductions/toy/published/table.csv"
    published.write_text(published.read_text().replace("1500", "1400"))
    assert exit_code(["report"]) == 0
    assert capsys.readouterr().out == f"{line.root}/results/laptop/report/index.html\n"
    assert [link.get_text() for link in report(line).select("#disagreements ~ div h3 a")] == ["It sends 1500 bytes"]

    assert exit_code(["records", "promote", "table-1"]) == 0
    promoted = line.root / "reproductions/toy/recorded/laptop/table-1/counted.json"
    assert capsys.readouterr().out.strip() == str(promoted)
    assert exit_code(["records", "diff"]) == 0
    assert capsys.readouterr().out == "toy/table-1/counted: no difference\n"

    record = json.loads((line.root / "results/laptop/toy/table-1/counted/record.json").read_text())
    record["values"][0]["value"] = 1600
    _write(line, record)
    exit_code(["records", "diff"])
    assert "bytes num_ranks=4: recorded 1.5 kB, now 1.6 kB  +6.67 %" in capsys.readouterr().out

    assert exit_code(["clean", "laptop"]) == 2  # there is no terminal to ask on
    assert "--yes" in capsys.readouterr().err
    assert exit_code(["clean", "laptop", "--yes"]) == 0
    assert not (line.root / "results/laptop/toy").exists() and promoted.exists()


def _write(line, record: dict) -> None:
    from workbench.reproduction.records import write_record

    project = Project(line.root)
    write_record(project.folder(load_catalogue(project)[0], "laptop") / "record.json", record)


def test_ctrl_c_is_a_clean_message_and_exit_code_130(line):
    process = line.start("reproduce", "fig-3", "--profile", "full")
    log = line.root / "results/full"
    give_up = time.monotonic() + 30
    while not list(log.glob(".partial-*/toy/fig-3/counted/log.txt")) and time.monotonic() < give_up:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.strip() == "Interrupted. Kept: nothing new, and every earlier record. The same command goes on with what is missing."
    assert not list(log.glob(".partial-*")) and not list(log.rglob("record.json"))
    assert not report(line, "full").select_one("meta[http-equiv=refresh]")
