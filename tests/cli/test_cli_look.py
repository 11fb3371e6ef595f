"""`list` and `show` are quick and machine-readable; wrong use is one clear line and exit code 2."""

import json
import shutil
import subprocess
import sys

import pytest

from workbench.reproduction.files import write_record

IDS = ["toy/table-1/counted", "toy/table-2/counted", "toy/fig-3/counted"]
COMMANDS = ["list", "show", "reproduce", "report", "records", "doctor", "data", "kernels", "bench", "clean", "new"]
WITH_EXAMPLE = ["list", "show", "reproduce", "report", "records promote", "records diff", "compare", "clean", "bench"]


def test_list_json_gives_id_technique_item_title_evidence_profiles_and_claims(line):
    assert json.loads(line("list", "--json", "table-1").out) == [
        {
            "id": "toy/table-1/counted",
            "technique": "toy",
            "item": "table-1",
            "title": "Bytes of table-1",
            "evidence": "COUNTED",
            "profiles": ["smoke", "laptop"],
            "claims": ["twice the size"],
        }
    ]


def test_list_writes_one_line_an_item_where_there_is_no_terminal(line):
    lines = line("list").out.splitlines()
    assert [text.split()[0] for text in lines[1:4]] == IDS
    assert lines[3].rstrip().endswith("Bytes of fig-3")


@pytest.mark.parametrize(
    ("width", "last"),
    [
        (12, "toy/fig-3/counted\n    none yet\n    Bytes of fig-3"),
        (32, "toy/fig-3/counted"),
        (45, "toy/fig-3/counted              none yet"),
        (70, "toy/fig-3/counted              none yet  Bytes of fig-3"),
    ],
)
def test_a_narrow_list_leaves_out_titles_and_runs_and_never_cuts_an_id_or_verdicts(line, monkeypatch, width, last):
    monkeypatch.setattr("workbench.cli.common.PIPED_WIDTH", width)
    assert f"\n{last}\n\n3 items; " in line("list").out


def test_show_all_gives_the_rule_of_every_claim_and_the_parameters(line):
    text = line("show", "table-1", "--all").out
    assert "Bytes must equal the published value. Why this rule: It is counted." in text
    assert "size=4" in text and "about 3 s" in text and "reproductions/toy/published/numbers.csv" in text


def promoted(line, **more) -> None:
    """Commit a record of table 1 and take it away from this machine."""
    line.toy.sealed(files={}, machine={"cpu": "X1", "cores": 4}, **more)
    line.said("records", "promote", "table-1")
    shutil.rmtree(line.root / "results")


def test_list_and_show_give_the_verdicts_of_the_recorded_run_and_of_a_newer_one_here(line):
    promoted(line)
    assert "toy/table-1/counted ✓1 recorded laptop 2026-01-01 Bytes of table-1" in line.said("list")
    assert "1 recorded on X1, 4 cores" in line.said("list")
    line.toy.sealed(files={}, value=9.0, started="2025-01-01T00:00:00+00:00")
    assert "✓1 recorded laptop 2026-01-01" in line.said("list")  # the older run here does not speak
    line.toy.sealed(files={}, value=9.0, started="2027-01-01T00:00:00+00:00")
    assert "✕1 ran laptop 2027-01-01" in line.said("list")
    run = json.loads(line("list", "--json", "table-1").out)[0]["run"]
    assert (run["is_own"], run["profile"], run["verdicts"]) == (True, "laptop", {"disagrees": 1})
    assert line.heavy_imports(["list"], ["show", "table-1"], ["show", "toy/*"]) == ["0"] * 3


def test_what_was_judged_is_kept_with_the_runs_and_never_in_a_folder_without(line, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere")
    line("list", "--results", str(other / "results"))
    assert [*other.iterdir()] == []
    (other / "results/laptop").mkdir(parents=True)
    line("list", "--results", str(other / "results"))
    assert sorted(path.name for path in (other / "results").iterdir()) == [".verdicts.json", "laptop"]


def test_show_has_a_line_a_claim_with_the_papers_value_and_ours_and_fits_a_screen(line, monkeypatch):
    monkeypatch.setattr("workbench.cli.common.PIPED_WIDTH", 100)
    claims = ", ".join(f"replace(WITHIN, name='claim {number}')" for number in range(40))
    line.toy.declare(f'item("table-1", claims=({claims}))')
    catalogue = line.root / "reproductions/toy/catalogue.py"
    catalogue.write_text(f"from dataclasses import replace\n{catalogue.read_text()}")
    promoted(line, value=9.0)
    lines = line("show", "table-1").out.splitlines()
    assert 24 <= len(lines) <= 50 and max(map(len, lines)) <= 100
    assert "run        recorded laptop 2026-01-01, 2 s on X1, 4 cores" in lines
    assert lines[9].split()[:7] == ["✕", "claim", "0", "8", "B", "9", "B"] and lines[9].rstrip().endswith("disagrees")
    assert "and 16 more: ✕ 16 disagrees" in lines and "size=4" in "".join(lines)


def test_several_items_have_a_line_each_and_a_claim_that_is_not_comparable_says_why(line):
    promoted(line, not_comparable={"twice the size": "the disk was full"})
    lines = line("show", "toy/*").out.splitlines()
    assert [text.split()[0] for text in lines[1:4]] == IDS and "?1 recorded laptop" in " ".join(lines[1].split())
    assert "? twice the size: the disk was full" in line.said("show", "table-1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["list", "--jsn"], "No such option: --jsn"),
        (["show"], "Missing argument 'ID'."),
        (["show", "tabel-1"], "no item fits 'tabel-1'; did you mean table-1 or table-2"),
        (["reproduce", "--profile", "lapto"], "there is no profile 'lapto'; did you mean 'laptop'?"),
        (["report", "--profile", "huge"], "there is no profile 'huge'; choose from smoke, quick, laptop, full, paper"),
        (["reproduce", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["reproduce", "--kernel", "pyhton3", "--dry-run"], "there is no kernel 'pyhton3'"),
        (["records", "promote"], "has a record"),
        (["records", "promote", "--profile", "smoke"], "gives no verdicts"),
        (["records", "promote", "--cells"], "none of the selected items has a finished cell in"),
        (["records", "diff"], "is no folder, no file, no commit and no profile"),
        (["compare", "laptop", "full"], "no item has both a record in laptop and one in full"),
        (["new", "technique", "Ring-Sum"], "did you mean 'ring_sum'?"),
        (["new", "technique", "class"], "technique name is 'class'; it must be no keyword of Python"),
        (["kernels", "install", "--device", "gpu"], "there is no device 'gpu'; did you mean 'cpu'?"),
        (["kernels", "remove", "workbench-9-ranks"], "is 'workbench-9-ranks'; it must be one that the workbench"),
        (["data", "verify", "glue/none"], "must be one of glue/cola"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_wrong_word_and_exit_code_2(line, words, message):
    before = sorted(line.root.rglob("*"))
    done = line(*words)
    assert done.code == 2
    assert message in done.err and done.err.startswith("workbench: ") and done.err.count("\n") == 1
    assert sorted(line.root.rglob("*")) == before  # nothing was run or written


def test_a_report_without_records_is_a_remark_and_the_version_is_shown(line):
    done = line("report", "--profile", "full")
    assert (done.code, done.err) == (0, "workbench: no records in profile full yet\n")
    assert not (line.root / "results").exists()
    assert line.said("--version").startswith("workbench 0.")


def test_the_help_names_every_command_and_that_of_a_command_has_an_example_of_it(line):
    text = line.said("--help")
    assert all(name in text for name in COMMANDS)
    for words in (*WITH_EXAMPLE, "new technique"):
        assert f"workbench {words}" in line.said(*words.split(), "--help").split("Example", 1)[1]


def test_a_record_in_the_wrong_folder_is_named_by_commands_that_go_on_without_it(line):
    path = line.root / "results/laptop/toy/table-1/counted/record.json"
    path.parent.mkdir(parents=True)
    write_record(path, {"schema": 1, "id": "toy/table-2/counted", "profile": "laptop"})
    message = f"{path}: refused, it is the record of toy/table-2/counted in the place of toy/table-1/counted"
    for words in (["show", "table-1"], ["reproduce", "table-1", "--dry-run"]):
        assert message in line.said(*words)
    done = line("report")
    assert (done.code, done.err) == (2, f"workbench: {message}\n")


# output that cannot be written


@pytest.mark.parametrize(("words", "unbuffered"), [("list", ""), ("list --json", "1")])
@pytest.mark.parametrize(
    ("behind", "code", "message"), [(">/dev/full", 1, "workbench: No space left on device\n"), ("| true", 0, "")]
)
def test_a_full_disk_behind_the_output_is_one_line_and_a_reader_that_has_gone_is_none(
    line, monkeypatch, words, unbuffered, behind, code, message
):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = f"'{sys.executable}' -c 'from workbench.cli import main; main()' {words} {behind}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, message)


NO_PAPERMILL = ModuleNotFoundError("No module named 'papermill'", name="papermill")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
        (NO_PAPERMILL, "the package papermill is missing: pip install papermill"),
    ],
)
def test_an_error_of_the_system_and_a_missing_package_are_one_line(line, monkeypatch, error, message):
    def broken(*_):
        raise error

    monkeypatch.setattr("workbench.cli.common.load", broken)
    done = line("list")
    assert (done.code, done.err) == (1, f"workbench: {message}\n")
