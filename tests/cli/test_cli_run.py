"""`reproduce` says what it will do, does it, keeps the report current, and ends with the right exit code."""

import json
import signal
import time

import pytest
from bs4 import BeautifulSoup

from workbench.cli import exit_code
from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.files import checksums, write_record

pytestmark = pytest.mark.timeout(90)


def report(line, profile: str = "laptop") -> BeautifulSoup:
    return BeautifulSoup((line.root / f"results/{profile}/report/index.html").read_text(), "html.parser")


def test_a_dry_run_says_what_would_run_and_why_and_writes_nothing(line, capsys):
    assert exit_code(["reproduce", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "it has no record" in text and "not declared for laptop; it has full" in text
    assert "2 of 3 items would run in the profile laptop, about 6 s" in text
    assert not (line.root / "results").exists()


def test_a_run_tells_its_time_first_fails_one_item_and_goes_on_then_does_nothing_and_reports_promotes_and_cleans(
    line, capsys
):
    code, out, err = line.run("reproduce")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("2 of 3 items to run in the profile laptop: about ")
    assert "1 not declared for it" in lines[0]
    assert any(text.startswith("toy/table-1/counted  COUNTED   ✓ 1 agrees") for text in lines)
    assert any(text.startswith("toy/table-2/counted  COUNTED   failed RuntimeError: boom") for text in lines)
    assert lines[-1] == f"Report: {line.root}/results/laptop/report/index.html"
    assert "boom" in report(line).select_one("#failures ~ div").get_text()
    assert not report(line).select_one("meta[http-equiv=refresh]")

    nothing = "Nothing to do: 1 up to date in the profile laptop. (--fresh runs it again.) [] 0"
    assert line.heavy_imports("reproduce", "table-1") == nothing

    published = line.root / "reproductions/toy/published/table.csv"
    published.write_text(published.read_text().replace("1500", "1400"))
    assert exit_code(["report"]) == 0
    assert capsys.readouterr().out == f"{line.root}/results/laptop/report/index.html\n"
    assert [link.get_text() for link in report(line).select("#disagreements ~ div h3 a")] == ["It sends 1500 bytes"]

    _draw(line, b"a figure")
    assert exit_code(["records", "promote", "table-1"]) == 0
    promoted = line.root / "reproductions/toy/recorded/laptop/table-1/counted.json"
    assert capsys.readouterr().out.strip() == str(promoted)
    assert promoted.with_suffix(".png").read_bytes() == b"a figure"
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


def test_a_data_folder_that_is_not_there_stops_only_what_uses_data(line, capsys, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DATA", str(line.root / "nowhere"))
    assert exit_code(["reproduce", "table-1", "--dry-run"]) == 0
    notebook = line.root / "notebooks/toy/good.ipynb"
    old = "from workbench.reproduction"
    notebook.write_text(notebook.read_text().replace(old, f"import workbench.datasets\\n{old}"))
    capsys.readouterr()
    assert exit_code(["reproduce", "table-1", "--dry-run"]) == 2
    assert "nowhere', which is not a folder, and toy/table-1/counted uses data" in capsys.readouterr().err


def test_a_long_failure_is_told_once_and_its_row_shows_its_own_time(line):
    notebook = line.root / "notebooks/toy/good.ipynb"
    assert line.run("reproduce", "table-1", "--profile", "smoke")[1].count("s; no verdicts") == 1
    raises = "raise RuntimeError('long ' * 30 + 'end')\\nfrom workbench"
    notebook.write_text(notebook.read_text().replace("from workbench", raises))
    path = line.root / "results/smoke/toy/table-1/counted/record.json"
    write_record(path, json.loads(path.read_text()) | {"seconds": 99.0})
    code, out, _ = line.run("reproduce", "table-1", "--profile", "smoke")
    row = next(text for text in out.splitlines() if "COUNTED" in text)
    assert code == 1 and out.count("long end") == 1 and len(row.rstrip()) < 120 and "99" not in row
    assert f"toy/table-1/counted failed: {path.with_name('failure.txt')}" in out


def _draw(line, figure: bytes) -> None:
    """Leave a figure beside the record of table-1, as its notebook might have."""
    path = line.root / "results/laptop/toy/table-1/counted/figure.png"
    path.write_bytes(figure)
    record = json.loads(path.with_name("record.json").read_text())
    artifacts = record["artifacts"] | {"figure": path.name}
    _write(line, record | {"artifacts": artifacts, "artifact_sha256": checksums(path.parent, artifacts)})


def _write(line, record: dict) -> None:
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
    kept = "Interrupted. Kept: nothing new, and every earlier record."
    assert err.strip() == f"{kept} The same command goes on with what is missing."
    assert not list(log.glob(".partial-*")) and not list(log.rglob("record.json"))
    assert not report(line, "full").select_one("meta[http-equiv=refresh]")
