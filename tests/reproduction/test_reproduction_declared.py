"""Catalogues, published numbers, parameters, usage: what is wrong is named before anything runs."""

import numpy
import pytest
from cases import refusals
from toy_project import ToyProject

from workbench.reproduction import (
    CatalogueError,
    Evidence,
    Project,
    Reproduction,
    UsageError,
    Within,
    find_item,
    load_catalogue,
    plan,
    run,
    select,
)
from workbench.reproduction.notebook_cells import check_parameters, read_notebook
from workbench.reproduction.runner import Status, lacking


def declared(**changes):
    base = {"technique": "toy", "item": "table-1", "evidence": Evidence.COUNTED, "title": "t"}
    base |= {"notebook": "notebooks/toy/one.ipynb", "parameters": {"smoke": {}}}
    return Reproduction(**(base | changes))


test_a_wrong_declaration_names_field_value_and_rule = refusals(
    ({"technique": "Toy"}, "technique is 'Toy'"),
    ({"item": "table 1"}, "item is 'table 1'"),
    ({"evidence": "counted"}, "evidence is 'counted'"),
    ({"notebook": "../n.ipynb"}, "notebook is"),
    ({"parameters": {}}, "parameters is {}"),
    ({"parameters": {"lapton": {}}}, "profile 'lapton'"),
    ({"parameters": {"smoke": {"item": "x"}}}, "sets 'item'"),
    ({"parameters": {"smoke": {"shape": (1, 2)}}}, r"\['shape'\] is \(1, 2\), a tuple"),
    ({"parameters": {"smoke": {"n": numpy.int64(3)}}}, "int64"),
    ({"parameters": {"smoke": {"n": [numpy.float32(3)]}}}, r"\['n'\]\[0\].*float32"),
    ({"parameters": {"smoke": {"n": float("nan")}}}, "must be finite"),
    ({"expected_s": {"smoke": -1}}, "expected_s"),
    ({"needs": ("sst2",)}, "data:NAME"),
    ({"claims": ["fast"]}, "claims is"),
    ({"claims": [Within("w", quantity="bytes", rel=0.1, because="b")]}, "published is None, and claim 'w' compares"),
    of=declared,
)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("CATALOGUE = (", "catalogue.py:1"),
        ("import nothing_of_this_name", "catalogue.py:1: No module"),
        ("CATALOGUE = 1", "CATALOGUE must be a tuple"),
        ("from workbench.reproduction import *\n\nCATALOGUE = (Reproduction(item='a'),)", "catalogue.py:3: "),
    ],
)
def test_a_malformed_catalogue_is_named_with_its_line(toy: ToyProject, source, said):
    (toy.root / "reproductions/toy/catalogue.py").write_text(source)
    with pytest.raises(CatalogueError, match=said):
        load_catalogue(Project())


@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        ('"table-1"), item("table-1"', CatalogueError, "toy/table-1/counted is declared twice"),
        ('"cells"', UsageError, "item is 'cells'; that is the folder of the technique's cells"),
        ('"table-1", "absent"', CatalogueError, "notebook of toy/table-1/counted is '.*/absent.ipynb'"),
        ('"table-1", technique="other"', CatalogueError, "must be its folder's name, 'toy'"),
    ],
)
def test_an_item_that_does_not_fit_the_project_is_refused(toy: ToyProject, item, error, said):
    toy.declare(f"item({item})")
    with pytest.raises(error, match=said):
        load_catalogue(Project())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quantity,value,unit\nbytes,1,bytes\n", "'source' is missing"),
        ("quantity,value,unit,source\nbytes,many,bytes,table 1\n", "numbers.csv: line 2: value of 'bytes' is 'many'"),
        ("quantity,value,unit,source\nother,1,bytes,t\n", "compares 'bytes', which numbers.csv does not have"),
        ("quantity,value,unit,source\nbytes,1,bytes,\n", "line 2 has no source"),
        ("quantity,value,unit,source\nbytes,1,bytes,t,5\n", "line 2 does not have 4 columns"),
    ],
)
def test_a_wrong_published_file_is_named_with_its_line(toy: ToyProject, text, said):
    toy.publish(text)
    with pytest.raises(CatalogueError, match=said):
        load_catalogue(Project())


def test_items_are_selected_by_id_beginning_or_glob_and_a_wrong_one_says_what_comes_close(toy: ToyProject):
    toy.declare(*(f'item("{name}")' for name in ("table-1", "table-10", "fig-2")))
    catalogue = load_catalogue(Project())
    chosen = lambda *patterns: [item.item for item in select(catalogue, patterns)]  # noqa: E731
    assert chosen() == ["table-1", "table-10", "fig-2"]
    assert chosen("toy/table-1") == ["table-1"]
    assert chosen("toy/table-*") == ["table-1", "table-10"]
    assert chosen("toy/fig-2/counted", "toy/table_1") == ["table-1", "fig-2"]
    with pytest.raises(UsageError, match="no item fits 'toy/tabel-1'; did you mean .*toy/table-1"):
        select(catalogue, ["toy/tabel-1"])


@pytest.mark.parametrize(
    ("cell", "parameters", "said"),
    [
        ('item = "x"\nsize = 1', {"sice": 2}, "has no parameter 'sice'; it has size"),
        ('item = "x"\nsize = 1', {"size": "2"}, "is '2', a str; it must be int, as notebooks/toy/one.ipynb says"),
        ('item = "x"\nsize = 1', {"size": True}, "a bool; it must be int"),
        ('item = "x"\nsize = 1', {"size": 1.5}, "a float; it must be int"),
        ('item = "x"\nsize = [1]', {"size": [1, "a"]}, r"'size'\[1\] is 'a'"),
        ('item = "x"\nsize = (1, 2)', {}, "default of parameter 'size' is a tuple"),
        ('item = "x"\nsize = len("ab")', {}, "it must be a literal"),
        ("size = 1", {}, "must begin with item = "),
        ('item = "x"\nsize: int = 0.5', {}, "one.ipynb: default of parameter 'size' is 0.5, a float; it must be int"),
        ('item = "x"\nsize: "no type" = 1', {}, "it must be 'no type'"),
        ('item = "x"\nseeds: list[int] = []', {"seeds": [0, True]}, r"'seeds'\[1\] is True, a bool; it must be int"),
        ('item = "x"\nseeds: list[int] = []', {"seeds": 0}, r"is 0, an int; it must be list\[int\]"),
        ('item = "x"\nrates: dict[str, list[float]] = {}', {"rates": {"a": [1, "b"]}}, r"\['a'\]\[1\] is 'b'.*float"),
        ('item = "x"\nby: dict[int, int] = {}', {"by": {"a": 1}}, "key of parameter 'by' is 'a', a str"),
        ('item = "x"\nrate: float | None = None', {"rate": "1"}, r"is '1', a str; it must be float \| None"),
        ('item = "x"\nrate: "Optional[float]" = None', {"rate": [1]}, r"a list; it must be Optional\[float\]"),
    ],
)
def test_parameters_are_checked_against_the_notebooks_cell(toy: ToyProject, cell, parameters, said):
    toy.notebook("one", parameters=cell)
    item = declared(parameters={"smoke": parameters})
    with pytest.raises(CatalogueError, match=said):
        check_parameters(item, read_notebook(Project().notebook(item)))


def test_a_whole_number_may_stand_for_a_float_and_anything_plain_for_none(toy: ToyProject):
    cell = 'item = "x"\nrate: float = 1e-3  # per step\nlimit = None\nnames = ["a"]\ntop: "Optional[int]" = None'
    toy.notebook("one", parameters=f"{cell}\nend: float | None = 2\nsets: list[dict] = [{{}}]")
    item = declared(parameters={"smoke": {"rate": 1, "limit": [1], "names": [], "top": 3, "end": None, "sets": []}})
    check_parameters(item, read_notebook(Project().notebook(item)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"profile": "lapton"}, "profile 'lapton' is unknown; it must be one of smoke, quick, laptop, full, paper"),
        ({"profile": "full"}, "toy/table-1/counted is not declared for profile full; it has smoke, laptop"),
        ({"kernel": "fortran"}, "there is no kernel 'fortran'; installed are .*python3"),
        ({"jobs": 0}, "jobs is 0"),
        ({"timeout_s": 0.0}, "timeout is 0.0"),
        ({"min_free_bytes": 10**18}, "MB free; a run needs at least"),
    ],
)
def test_wrong_use_is_one_clear_line_and_nothing_is_run(toy: ToyProject, options, said):
    with pytest.raises(UsageError, match=said) as caught:
        run(Project(), load_catalogue(), **options)
    assert "\n" not in str(caught.value)
    assert not list(toy.root.glob("results/*/toy"))


def test_an_item_whose_data_are_missing_is_skipped_with_the_command_that_brings_them(toy: ToyProject):
    manifest = "name,split,file,rows,bytes,sha256,hub_split,licence,origin,hub_id,hub_config,package,note\n"
    manifest += "glue/sst2,train,sst2/train.tsv,1,1,,train,x,x,no-one/glue,sst2,,\n"
    (toy.root / "data").mkdir()
    (toy.root / "data/manifest.csv").write_text(manifest)
    toy.declare('item("table-1", needs=("data:glue/sst2",))')
    outcome = run(Project(), load_catalogue())
    why = "needs the data 'glue/sst2', of which sst2/train.tsv is not here: workbench data fetch glue/sst2, or set WORK"
    assert [(item.status, item.reason.startswith(why)) for item in outcome.items] == [(Status.SKIPPED, True)]
    assert outcome.exit_code == 0
    toy.declare('item("table-1", needs=("data:glue/cola",))')
    with pytest.raises(
        UsageError, match="needs the data 'glue/cola': name is 'glue/cola'; it must be one of glue/sst2"
    ):
        plan(Project(), load_catalogue(), "laptop")


def test_a_measured_item_of_the_profile_paper_has_a_time_and_says_how_many_gpus_it_lacks():
    paper = [item for item in load_catalogue(Project()) if item.evidence is Evidence.MEASURED]
    paper = [item for item in paper if "paper" in item.parameters]
    assert len({item.technique for item in paper}) == 5 and all(item.expected_s["paper"] for item in paper)
    fig_5b = next(item for item in paper if item.id == "flextp/fig-5b/measured")
    assert lacking(fig_5b, "paper", 4) == "needs 8 GPUs with NCCL; here are 4" and lacking(fig_5b, "paper", 8) == ""
    fig_5a = next(item for item in paper if item.id == "flextp/fig-5a/measured")  # on virtual ranks
    assert lacking(fig_5a, "paper", 0) == "needs 1 GPU; here are 0"
    hetpipe = find_item(load_catalogue(Project()), "sdpipe/waiting/measured")
    assert plan(Project(), [hetpipe], "paper", checked=True)[0].why == "does not run on GPUs yet; it has smoke, full"


def test_a_results_folder_that_cannot_be_written_is_named(toy: ToyProject):
    (toy.root / "results").write_text("a file in the way")
    with pytest.raises(UsageError, match="results/laptop cannot be written: Not a directory"):
        run(Project(), load_catalogue())


def test_a_root_without_reproductions_is_named(tmp_path):
    with pytest.raises(UsageError, match="has no folder reproductions/"):
        Project(tmp_path)
