"""Records are whole or absent, trusted only where they belong, and compared value by value."""

import json
import math
import shutil
import types

import numpy
import pytest
from matplotlib.figure import Figure
from PIL import Image
from toy_project import ToyProject

from workbench.reproduction import (
    CatalogueError,
    ItemRun,
    Project,
    RecordError,
    UsageError,
    find_item,
    find_records,
    load_catalogue,
    load_records,
    load_verdicts,
    plan,
    promote,
    read_record,
    record,
)
from workbench.reproduction.files import checksum, write_json
from workbench.reproduction.records import record_of
from workbench.reproduction.runner import sweep

ITEM, OTHER = "toy/table-1/counted", "toy/table-2/counted"


def values(value, **keys):
    return [{"quantity": "bytes", "method": "A1", "value": value, "unit": "bytes", **keys}]


def why(toy: ToyProject, position: int = 0) -> str:
    return plan(Project(), load_catalogue(Project()), "laptop")[position].why


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("8.0", "9.0"), "its checksum does not fit its content"),
        (lambda text: text[:50], "it cannot be read"),
        (lambda text: "{}", "it is no record of schema 1"),
    ],
)
def test_a_record_that_was_changed_is_refused_by_name_everywhere(toy: ToyProject, change, reason):
    toy.sealed()
    assert load_records()["value"].tolist() == [8.0]
    path = toy.folder() / "record.json"
    path.write_text(change(path.read_text()))
    message = f"{path}: refused, {reason}"
    with pytest.raises(RecordError, match=message):
        read_record(path, id=ITEM, profile="laptop")
    for use in (load_records, load_verdicts, lambda: promote(Project(), "laptop")):
        with pytest.raises(RecordError, match=message):
            use()
    assert find_records(Project()).records == () and find_records(Project()).refused[0].startswith(message)
    assert why(toy).startswith(f"its record is refused: {message}")
    assert not (toy.root / "reproductions/toy/recorded").exists()


def test_a_record_in_the_folder_of_another_item_or_profile_is_refused_by_name(toy: ToyProject):
    toy.declare('item("table-1")', 'item("table-2")')
    toy.sealed()
    shutil.copytree(toy.folder("table-1"), toy.folder("table-2"))
    path = toy.folder("table-2") / "record.json"
    message = f"{path}: refused, it is the record of {ITEM} in the place of {OTHER}"
    listing = find_records(Project())
    assert [stored["id"] for stored in listing.records] == [ITEM] and listing.refused == (message,)
    assert why(toy, 1) == f"its record is refused: {message}"
    shutil.rmtree(toy.folder("table-2"))

    (promoted,) = promote(Project(), "laptop", [ITEM])
    other = promoted.parent.with_name("table-2") / promoted.name
    other.parent.mkdir()
    shutil.copy(promoted, other)
    with pytest.raises(RecordError, match=r"recorded/laptop/table-2/counted.json: refused, it is the record of toy/"):
        record_of(ItemRun(Project(), find_item(load_catalogue(Project()), OTHER), "laptop"), promoted=True)

    toy.sealed(profile="smoke")
    shutil.rmtree(toy.folder())
    shutil.copytree(toy.folder(profile="smoke"), toy.folder())
    assert "refused, it is of the profile smoke in the place of laptop" in why(toy)


def test_a_dead_runners_folder_with_the_record_of_another_item_is_not_moved_into_place(toy: ToyProject):
    results = toy.root / "results/laptop"
    for name in ("table-2", "table-1"):
        toy.sealed(folder=results / f".partial-1/toy/{name}/counted")
    sweep(results)
    assert [str(path.parent.relative_to(results)) for path in results.rglob("record.json")] == [ITEM]


@pytest.mark.parametrize("name", ["notebook.ipynb", "figure.png", "log.txt"])
def test_a_file_beside_a_record_that_changed_or_is_missing_makes_it_run_again_and_is_named(toy: ToyProject, name):
    assert why(toy) == "it has no record"
    toy.folder().mkdir(parents=True)
    (toy.folder() / "failure.json").write_text("{}")
    assert why(toy) == "its last run failed"
    (toy.folder() / "failure.json").unlink()
    sealed = toy.sealed()
    # printf 'content of log.txt' | sha256sum
    assert sealed["artifact_sha256"]["log"] == "6f47c524008c4f8efc0aad34f2a0e5aac9f2939452d9990045b1d206c775cd18"
    assert why(toy) == "up to date"
    (toy.folder() / name).write_text(f"Content of {name}")
    assert why(toy) == f"{name} does not match the checksum in its record"
    (toy.folder() / name).unlink()
    assert why(toy) == f"{name} is missing beside its record"
    toy.sealed(artifact_sha256={})
    assert why(toy) == "notebook.ipynb has no checksum in its record"


def test_the_checksum_is_that_of_the_canonical_json_without_it():
    # printf '{"a":1,"b":"nan"}' | sha256sum
    expected = "a7f233ac94813efcb1fc49a2220244d90bbdf3b3cfca556615572120a0ccd3c9"
    assert checksum({"b": math.nan, "a": 1, "checksum": "x"}) == expected


def test_numbers_of_numpy_become_plain_and_what_is_not_finite_survives_as_text(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": numpy.float32(0.5), "b": numpy.arange(2), "c": math.inf, "d": (1, 2)})
    assert json.loads(path.read_text()) == {"a": 0.5, "b": [0, 1], "c": "inf", "d": [1, 2]}
    with pytest.raises(ValueError, match="value is <object.*; it must be a plain number"):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text())["a"] == 0.5 and [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_records_load_as_one_row_a_value_and_verdicts_as_one_row_a_claim(toy: ToyProject):
    assert load_records().empty
    toy.sealed()
    columns = ["id", "quantity", "method", "value", "unit", "seconds"]
    assert load_records().loc[0, columns].tolist() == [ITEM, "bytes", "A1", 8.0, "bytes", 2.0]
    assert load_verdicts().loc[0, ["claim", "verdict", "rows"]].tolist() == ["twice the size", "agrees", 2]


def test_record_outside_a_run_shows_the_comparison_and_writes_nothing(toy: ToyProject):
    before = sorted(toy.root.rglob("*"))
    table = record(ITEM, values(numpy.float64(8)))
    assert table.iloc[0].tolist() == ["twice the size", "method=A1", 8.0, 8.0, "bytes", 0.0, "agrees", ""]
    assert record(ITEM, values(9.0))["verdict"].tolist() == ["disagrees"]
    assert sorted(toy.root.rglob("*")) == before


def test_recording_reads_the_catalogue_of_its_technique_alone(toy: ToyProject):
    (toy.root / "reproductions/other").mkdir()
    (toy.root / "reproductions/other/catalogue.py").write_text("CATALOGUE = 3")
    assert record(ITEM, values(8))["verdict"].tolist() == ["agrees"]
    with pytest.raises(CatalogueError, match="other/catalogue.py: CATALOGUE must be"):
        load_catalogue(Project())


def in_a_run(toy: ToyProject, monkeypatch, profile="laptop"):
    folder = toy.root / "run"
    folder.mkdir()
    monkeypatch.setenv("WORKBENCH_RUN_DIR", str(folder))
    monkeypatch.setenv("WORKBENCH_RUN_ITEM", ITEM)
    monkeypatch.setenv("WORKBENCH_RUN_PROFILE", profile)
    return folder


def test_record_inside_a_run_keeps_values_figure_trace_and_sources(toy: ToyProject, monkeypatch):
    folder = in_a_run(toy, monkeypatch)
    figure = Figure(figsize=(2, 1))
    source = types.SimpleNamespace(as_record=lambda: {"name": "sst2", "source": "hub", "detail": "", "sha256": "00"})
    numbers = {"seeds": [numpy.int64(3)], "configuration": {"tp": numpy.int64(4)}}
    record(ITEM, values(8), figure=figure, trace=[{"ph": "X"}], data=[source], **numbers)
    held = json.loads((folder / "recording.json").read_text())
    assert held["artifacts"] == {"figure": "figure.png", "trace": "trace.json"}
    with Image.open(folder / "figure.png") as picture:
        assert picture.mode == "P"  # a palette
    assert held["data"] == [{"name": "sst2", "source": "hub", "detail": "", "sha256": "00"}]
    assert (held["seeds"], held["configuration"]) == ([3], {"tp": 4})
    assert held["machine"]["cores"] >= 1 and held["versions"]["torch"] and held["environment"]["OMP_NUM_THREADS"] == "1"
    assert json.loads((folder / "trace.json").read_text()) == [{"ph": "X"}]
    with pytest.raises(ValueError, match="already called"):
        record(ITEM, values(8))


def test_the_smoke_profile_gives_no_verdicts(toy: ToyProject, monkeypatch):
    in_a_run(toy, monkeypatch, profile="smoke")
    assert record(ITEM, values(8))["verdict"].tolist() == [""]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"values": []}, "values is empty"),
        ({"values": [{"quantity": "bytes", "value": 1}]}, "unit is missing"),
        ({"values": values("many")}, "value of 'bytes' is 'many'"),
        ({"values": values(True)}, "must be a number"),
        ({"values": values(1.0, low=2.0, high=1.0)}, "low is 2.0, above high 1.0"),
        ({"values": values(8), "data": [{"name": "sst2", "source": "internet"}]}, "'internet'; it must be one of"),
        ({"values": values(8), "seeds": [0.5]}, "seeds has 0.5"),
        ({"values": values(8), "not_comparable": {"typo": "why"}}, "'typo', which is no claim"),
    ],
)
def test_a_wrong_recording_is_refused_and_writes_nothing(toy: ToyProject, monkeypatch, arguments, said):
    folder = in_a_run(toy, monkeypatch)
    with pytest.raises(ValueError, match=said):
        record(ITEM, **arguments)
    assert not list(folder.iterdir())


def test_a_recording_of_another_item_or_an_unknown_one_is_refused(toy: ToyProject, monkeypatch):
    with pytest.raises(UsageError, match="no item 'toy/table-2/counted'; did you mean"):
        record("toy/table-2/counted", values(8))
    in_a_run(toy, monkeypatch)
    monkeypatch.setenv("WORKBENCH_RUN_ITEM", "toy/table-9/counted")
    with pytest.raises(ValueError, match="the run is of 'toy/table-9/counted'"):
        record(ITEM, values(8))


def test_simulated_evidence_must_say_what_it_was_calibrated_on(toy: ToyProject):
    toy.declare('item("table-1", evidence=Evidence.SIMULATED)')
    with pytest.raises(ValueError, match="calibration is None"):
        record("toy/table-1/simulated", values(8))
    record("toy/table-1/simulated", values(8), calibration={"from": "the data sheet"})


def test_promoting_copies_records_and_figures(toy: ToyProject):
    project, folder = Project(), toy.root / "reproductions/toy/recorded/laptop/table-1"
    with pytest.raises(UsageError, match="none of the selected items has a record"):
        promote(project, "laptop")
    toy.sealed()
    assert promote(project, "laptop", ["toy/table-1"]) == (folder / "counted.json",)
    assert (folder / "counted.png").read_text() == "content of figure.png"
    toy.sealed(files={"figure": None})
    promote(project, "laptop")
    assert [path.name for path in folder.iterdir()] == ["counted.json"]  # the older figure is gone


def test_a_figure_of_another_run_or_none_where_one_was_sealed_is_not_promoted(toy: ToyProject):
    toy.sealed()
    figure = toy.folder() / "figure.png"
    figure.write_bytes(b"of another run")
    with pytest.raises(RecordError, match="figure.png: refused, figure.png does not match the checksum"):
        promote(Project(), "laptop")
    figure.unlink()
    with pytest.raises(RecordError, match="figure.png: refused, figure.png is missing beside its record"):
        promote(Project(), "laptop")
    assert not (toy.root / "reproductions/toy/recorded").exists()


def test_the_verdict_of_an_order_stands_in_a_row_of_its_own_and_its_values_have_none(toy: ToyProject):
    order = 'Ordering("o", quantity="time", along="x", order=[1, 2, 3], because="the figure shows it")'
    toy.declare(f'item("table-1", claims=({order},))')
    rows = [{"quantity": "time", "x": x, "value": value, "unit": "s"} for x, value in ((1, 1.0), (2, 3.0), (3, 2.0))]
    table = record(ITEM, rows)
    reason = "expected less at 2 than at 3; found 3 and 2"
    assert table["of"].tolist() == ["", "x=1", "x=2", "x=3"]
    assert table["verdict"].tolist() == ["disagrees", "", "", ""]
    assert table["reason"].tolist() == [reason, "", "", reason]
    assert table["difference"].isna().all()
