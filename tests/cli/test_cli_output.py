"""Output that cannot be written is one line or none; a run writes its report no more often than it is worth."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from workbench.cli import exit_code, reproduce
from workbench.reproduction import runner as events

pytestmark = pytest.mark.timeout(60)


def piped(line, words: str, unbuffered: str) -> subprocess.CompletedProcess:
    command = f"'{sys.executable}' -c 'from workbench.cli import main; main()' {words}"
    environment = line.environment | {"PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["list", "list --json"])
def test_a_full_disk_behind_the_output_is_one_line(line, words, unbuffered):
    done = piped(line, f"{words} >/dev/full", unbuffered)
    assert (done.returncode, done.stderr) == (1, "workbench: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["list", "list --json"])
def test_a_reader_that_has_gone_ends_a_command_quietly(line, words, unbuffered):
    done = piped(line, f"{words} | true", unbuffered)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_error_of_the_system_without_a_file_is_one_line(line, capsys, monkeypatch):
    def broken():
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("workbench.cli.common.load", broken)
    assert exit_code(["list"]) == 1
    assert capsys.readouterr().err == "workbench: Cannot allocate memory\n"


@pytest.fixture
def told(line, monkeypatch):
    """A run whose clock stands still, whose reports cost a known time, and which notes when each was written."""
    now, written = SimpleNamespace(s=0.0, cost_s=0.1), []

    def write(*arguments, under_way, **options):
        written.append((now.s, under_way))
        now.s += now.cost_s

    monkeypatch.setattr("workbench.cli.reproduce.monotonic", lambda: now.s)
    monkeypatch.setattr("workbench.reproduction.report.write_report", write)
    run = reproduce.Run(None, (), (), "laptop")

    def tell(at_s, event):
        now.s = at_s
        run.on_event(event, lambda event: None)

    return SimpleNamespace(now=now, written=written, tell=tell, run=run)


def started(id: str) -> events.ItemStarted:
    return events.ItemStarted(id=id, number=1, num_items=9, expected_s=1.0)


def finished(id: str) -> events.ItemFinished:
    return events.ItemFinished(outcome=events.ItemOutcome(id=id, status=events.Status.RECORDED))


PROGRESS = events.Progress(running={}, num_done=1, num_items=9, elapsed_s=1.0, remaining_s=1.0)


def test_a_run_writes_its_report_at_most_every_five_seconds_and_catches_up(told):
    told.tell(1.0, started("a"))
    told.tell(2.0, finished("a"))
    told.tell(3.0, PROGRESS)
    assert told.written == [(1.0, True)]
    told.tell(6.2, PROGRESS)  # 5 s after the end of the last one, which was at 1.1 s
    assert told.written[1:] == [(6.2, True)]
    told.tell(30.0, PROGRESS)  # nothing has changed
    assert len(told.written) == 2
    told.tell(31.0, finished("b"))
    assert told.written[2:] == [(31.0, True)]
    told.run.write_report()
    assert told.written[3:] == [(31.1, False)]  # the last one, at once


def test_a_report_that_is_dear_is_written_a_tenth_of_the_time(told):
    told.now.cost_s = 2.0
    told.tell(0.0, started("a"))
    told.tell(21.9, finished("a"))  # 10 x 2 s after the end of the last one is 22 s
    assert told.written == [(0.0, True)]
    told.tell(22.0, PROGRESS)
    assert told.written[1:] == [(22.0, True)]


def test_a_package_that_is_missing_is_named_with_what_installs_it(line, capsys, monkeypatch):
    def without():
        raise ModuleNotFoundError("No module named 'papermill'", name="papermill")

    monkeypatch.setattr("workbench.cli.common.load", without)
    assert exit_code(["list"]) == 1
    told = "workbench: the package papermill is missing; pip install 'distributed-training-workbench[all]'\n"
    assert capsys.readouterr().err == told
