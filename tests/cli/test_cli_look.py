"""`list` and `show` are quick and machine-readable; wrong use is one clear line and exit code 2."""

import json

import pytest

from workbench.cli import exit_code
from workbench.reproduction.files import write_record

pytestmark = pytest.mark.timeout(30)
IDS = ["toy/table-1/counted", "toy/table-2/counted", "toy/fig-3/counted"]
COMMANDS = ["list", "show", "reproduce", "report", "records", "doctor", "data", "kernels", "bench", "clean", "new"]
WITH_EXAMPLE = ["list", "show", "reproduce", "report", "records promote", "records diff", "clean", "bench"]


def test_list_json_gives_id_technique_item_title_evidence_profiles_and_claims(line, capsys):
    assert exit_code(["list", "--json", "table-1"]) == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert {name: item.pop(name) for name in ("profiles", "claims")} == {
        "profiles": ["smoke", "laptop"],
        "claims": ["It sends 1500 bytes"],
    }
    about = {"id": "toy/table-1/counted", "technique": "toy", "item": "table-1"}
    assert item == about | {"title": "Bytes of table-1", "evidence": "COUNTED"}


def test_list_writes_one_line_an_item_where_there_is_no_terminal(line, capsys):
    exit_code(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [text.split()[0] for text in lines[1:4]] == IDS
    assert lines[3].rstrip().endswith("Bytes of fig-3")


@pytest.mark.parametrize("width", [12, 40])
def test_a_narrow_list_never_cuts_an_id(line, capsys, monkeypatch, width):
    monkeypatch.setattr("workbench.cli.common.PIPED_WIDTH", width)
    exit_code(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0:9:3] == IDS
    assert lines[7:9] == ["    Bytes of fig-3", "    1 claim; full"]


def test_show_gives_the_rule_of_every_claim_and_the_parameters(line, capsys):
    assert exit_code(["show", "table-1"]) == 0
    text = capsys.readouterr().out
    assert "Bytes equal to the published value. Reason: a count is exact." in text
    assert "num_ranks=4" in text and "about 3 s" in text and "reproductions/toy/published/table.csv" in text


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["show", "table-1"], ["reproduce", "--dry-run"]])
def test_looking_imports_neither_torch_nor_papermill(line, words):
    assert line.heavy_imports(*words).endswith(" [] 0")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["list", "--jsn"], "No such option: --jsn"),
        (["show"], "Missing argument 'ID'."),
        (["show", "tabel-1"], "no item fits 'tabel-1'; did you mean table-1 or table-2"),
        (["reproduce", "toy/tabel-1"], "did you mean toy/table-1"),
        (["reproduce", "--profile", "lapto"], "there is no profile 'lapto'; did you mean 'laptop'?"),
        (["report", "--profile", "huge"], "there is no profile 'huge'; choose from smoke, laptop, full, paper"),
        (["reproduce", "--jobs", "none"], "Invalid value for '--jobs'"),
        (["reproduce", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["reproduce", "--kernel", "pyhton3"], "there is no kernel 'pyhton3'"),
        (["reproduce", "--kernel", "pyhton3", "--dry-run"], "there is no kernel 'pyhton3'"),
        (["reproduce", "fig-3"], "not declared for profile laptop"),
        (["records", "promote"], "has a record"),
        (["records", "promote", "--profile", "smoke"], "gives no verdicts"),
        (["records", "promote", "--cells"], "none of the selected items has a finished cell in"),
        (["records", "diff"], "no item has both"),
        (["clean", "everything"], "there is no profile 'everything'"),
        (["new", "technique", "Ring-Sum"], "did you mean 'ring_sum'?"),
        (["new", "technique", "class"], "technique name is 'class'; it must be no keyword of Python"),
        (["kernels", "install", "--device", "gpu"], "there is no device 'gpu'; did you mean 'cpu'?"),
        (
            ["kernels", "remove", "workbench-9-ranks"],
            "kernel is 'workbench-9-ranks'; it must be one that the workbench",
        ),
        (["data", "verify", "glue/none"], "manifest"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_thing_and_exit_code_2(line, capsys, words, told):
    before = sorted(line.root.rglob("*"))
    assert exit_code(words) == 2
    error = capsys.readouterr().err
    assert told in error and error.startswith("workbench: ") and error.count("\n") == 1
    assert sorted(line.root.rglob("*")) == before  # nothing was run or written


def test_a_malformed_catalogue_is_one_line_with_its_file_and_exit_code_2(line, capsys):
    path = line.root / "reproductions/toy/catalogue.py"
    path.write_text(path.read_text().replace('because="a count is exact"', 'because=""'))
    assert exit_code(["list"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and "because" in error and error.count("\n") == 1


def test_a_report_without_records_is_a_remark_and_the_version_is_told(line, capsys):
    assert exit_code(["report", "--profile", "full"]) == 0
    assert capsys.readouterr().err == "workbench: no records in profile full yet\n"
    assert not (line.root / "results").exists()
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out.startswith("workbench 0.")


def test_the_help_names_every_command_of_the_house(line, capsys):
    assert exit_code(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("words", [*WITH_EXAMPLE, "new technique"])
def test_the_help_of_a_command_has_an_example_of_it(line, capsys, words):
    assert exit_code([*words.split(), "--help"]) == 0
    assert f"workbench {words}" in capsys.readouterr().out.split("Example", 1)[1]


def test_a_record_in_the_wrong_folder_is_named_by_every_command_that_would_have_read_it(line, capsys):
    path = line.root / "results/laptop/toy/table-1/counted/record.json"
    path.parent.mkdir(parents=True)
    write_record(path, {"schema": 1, "id": "toy/table-2/counted", "profile": "laptop"})
    said = f"{path}: refused, it is the record of toy/table-2/counted in the place of toy/table-1/counted"
    for command in (["show", "table-1"], ["reproduce", "table-1", "--dry-run"]):
        assert exit_code(command) == 0
        assert said in " ".join(capsys.readouterr().out.split())  # both break long lines
    assert exit_code(["report"]) == 0
    assert capsys.readouterr().err == f"workbench: {said}\n"
    assert exit_code(["records", "promote"]) == 2
    assert capsys.readouterr().err == f"workbench: {said}\n"
    kept = line.root / "reproductions/toy/recorded/laptop/table-1/counted.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(path.read_text())
    assert exit_code(["records", "diff"]) == 2
    assert f"{kept}: refused" in capsys.readouterr().err
