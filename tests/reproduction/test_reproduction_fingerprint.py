"""What an item depends on: found without importing, and named when it changes."""

import json
import os
import subprocess

import pytest
from toy_project import RECORD, ToyProject

from workbench.datasets import places
from workbench.reproduction import Project, load_catalogue
from workbench.reproduction import fingerprint as fingerprints
from workbench.reproduction.fingerprint import Fingerprinter, Library, by_room, changes
from workbench.reproduction.machine import commit_of


def library_of(root, files: dict[str, str]) -> Library:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Library([root])


def test_modules_are_found_through_imports_of_imports_and_packages_on_the_way(tmp_path):
    packages = {"lib/__init__.py": "", "lib/deep/__init__.py": "", "lib/other.py": ""}
    modules = {"lib/a.py": "from . import b\n", "lib/b.py": "def f():\n    from lib.deep.c import g\n"}
    library = library_of(tmp_path, packages | modules | {"lib/deep/c.py": "import os"})
    needed = list(library.needed_by(["%matplotlib inline\nimport lib.a as a"]))
    assert needed == ["lib", "lib.a", "lib.b", "lib.deep", "lib.deep.c"]
    assert list(library.needed_by(["from lib import other"])) == ["lib", "lib.other"]
    assert list(library.needed_by(["import os, numpy"])) == []


def test_a_module_named_in_a_text_counts_and_a_lazy_package_counts_whole_where_asked_by_name(tmp_path):
    lazy = {"lazy/__init__.py": "def __getattr__(name): ...", "lazy/a.py": "", "lazy/b.py": ""}
    library = library_of(tmp_path, lazy)
    assert list(library.needed_by(["run('-m', 'lazy.a')"])) == ["lazy", "lazy.a"]
    assert list(library.needed_by(["from lazy import Thing"])) == ["lazy", "lazy.a", "lazy.b"]


def test_a_module_that_names_a_folder_below_the_root_depends_on_the_data_files_in_it(tmp_path):
    modules = {"reader.py": "ROOT / 'tables/tool'", "stranger.py": "'tables/other'"}
    before, after = (
        library_of(tmp_path, modules | {"tables/tool/one.csv": table}).needed_by(["import reader, stranger"])
        for table in ("quantity,value\n", "quantity,value\nms,1\n")
    )
    assert {name for name in before if before[name] != after[name]} == {"reader"}


def test_the_way_from_a_cell_to_a_library_function_is_followed_in_the_real_library():
    project_root = Project().root
    needed = Library([project_root]).needed_by(["from workbench.reproduction import record"])
    assert {"workbench.reproduction.recording", "workbench.rows"} <= set(needed)
    harness = {name for name in needed if name.startswith("workbench.reproduction.")}
    assert harness == {"workbench.reproduction.recording"}  # judging and reporting touch no number


def test_what_is_kept_beside_compiled_modules_of_our_own_is_used_only_while_it_fits_their_source(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints.workbench, "__file__", str(tmp_path / "workbench/__init__.py"))

    def digest(source):
        fingerprints._parsed.cache_clear()
        library = library_of(tmp_path, {"workbench/__init__.py": "", "workbench/own.py": source})
        return library.needed_by(["import workbench.own"])["workbench.own"]

    first = digest("x = 1")
    (kept,) = (tmp_path / "workbench/__pycache__").glob("own.*.json")
    content = kept.read_text()
    assert digest("x = 1") == first != digest("x = 2")
    kept.write_text(content.replace(first, "0" * len(first)))  # of the other source
    assert digest("x = 1") == "0" * len(first)
    for strange in ("{", "[]", "{}"):
        kept.write_text(strange)
        assert digest("x = 1") == first


def fingerprint(toy: ToyProject):
    project = Project()
    return Fingerprinter(project)(load_catalogue(project)[0], "laptop")


def test_each_part_that_changes_is_named(toy: ToyProject, monkeypatch):
    (toy.root / "notebooks/toy/beside.py").write_text("FACTOR = 2")
    toy.notebook("one", "import beside", RECORD)
    before = fingerprint(toy)
    assert changes(before, fingerprint(toy)) == ""

    (toy.root / "notebooks/toy/beside.py").write_text("FACTOR = 3")
    assert changes(before, fingerprint(toy)) == "library: beside changed"
    (toy.root / "notebooks/toy/beside.py").write_text("FACTOR = 2")

    toy.publish("quantity,method,value,unit,source\nbytes,A1,9,bytes,table 1\n")
    assert changes(before, fingerprint(toy)) == "published changed"

    catalogue = toy.root / "reproductions/toy/catalogue.py"
    catalogue.write_text(catalogue.read_text().replace("rel=0.0", "rel=0.1").replace('"size": 4', '"size": 5'))
    assert changes(before, fingerprint(toy)) == "parameters: size changed; published changed; declaration changed"

    toy.notebook("one", "import beside  # again", RECORD)
    assert "notebook changed" in changes(before, fingerprint(toy))


@pytest.mark.parametrize(
    ("size", "change"),
    [
        ("size: int = 1  # elements", ""),
        ('size: "Optional[int]" = 1  # elements', ""),
        ("size = 2  # elements", "notebook changed"),
    ],
)
def test_the_type_of_a_parameter_changes_no_fingerprint_and_its_default_does(toy: ToyProject, size, change):
    before = fingerprint(toy)
    toy.notebook("one", RECORD, parameters=f'item: str = "toy/table-1/counted"  # id\n{size}')
    assert changes(before, fingerprint(toy)) == change


def test_every_cell_of_a_notebook_matters_and_what_running_it_leaves_behind_does_not(toy: ToyProject):
    path = toy.root / "notebooks/toy/one.ipynb"
    held = json.loads(path.read_text())
    card = {"cell_type": "markdown", "id": "card", "metadata": {}, "source": ["The question\n", "is this"]}

    def written():
        path.write_text(json.dumps(held | {"cells": [card, *held["cells"]]}))
        return fingerprint(toy)

    before = written()
    for cell in held["cells"]:
        cell |= {"execution_count": 7, "outputs": [{"output_type": "stream", "name": "stdout", "text": "x"}]}
        cell["metadata"] = cell["metadata"] | {"execution": {"iopub.status.busy": "now"}}
    card["source"] = "The question\nis this"  # the same text, written in the format's other way
    assert changes(before, written()) == ""
    for change in ({"source": "Another question"}, {"source": "The question\nis this", "cell_type": "raw"}):
        card.update(change)
        assert changes(before, written()) == "notebook changed"


def test_cached_data_whose_content_changes_under_the_same_name_matters(toy: ToyProject, monkeypatch, tmp_path):
    for variable in ("XDG_CACHE_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub elsewhere"))
    hub = tmp_path / "hub elsewhere/datasets--nyu-mll--glue/snapshots/c0ffee/sst2/train.parquet"
    prepared = tmp_path / "home/datasets/nyu-mll___glue/sst2/0.0.0/c0ffee/glue-train.arrow"
    for path in (hub, prepared):
        path.parent.mkdir(parents=True)
        path.write_text("a sentence")
    toy.notebook("one", "from workbench.datasets import glue", RECORD)
    assert places.cached_files("nyu-mll/glue", "sst2/train*", repo_type="dataset") == (hub,)
    assert places.prepared_files("nyu-mll/glue", "sst2", "train") == (prepared,)
    blob = tmp_path / "hub elsewhere/datasets--nyu-mll--glue/blobs/1234"
    blob.parent.mkdir()
    hub.rename(blob)
    hub.symlink_to(blob)  # the cache's files are links
    for path, content in ((hub, blob), (prepared, prepared)):
        before, state = fingerprint(toy), content.stat()
        content.write_text("another, longer sentence")
        os.utime(content, ns=(state.st_atime_ns, state.st_mtime_ns))
        assert changes(before, fingerprint(toy)) == "data: hub changed"  # by its size
        before = fingerprint(toy)
        os.utime(content, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
        assert changes(before, fingerprint(toy)) == "data: hub changed"  # by its time of change
        before = fingerprint(toy)
        path.rename(path.with_name("train-of-another-name"))
        assert changes(before, fingerprint(toy)) == "data: hub changed"  # by its name


def test_data_matters_to_what_imports_the_data_sets_alone(toy: ToyProject, monkeypatch, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    assert fingerprint(toy)["data"] == {}
    toy.notebook("one", "from workbench.datasets import glue", RECORD)
    without = fingerprint(toy)
    monkeypatch.setenv("WORKBENCH_DATA", str(data))
    empty = fingerprint(toy)
    (data / "train.tsv").write_text("a sentence")
    assert changes(without, empty) == "data: WORKBENCH_DATA changed"
    assert changes(empty, fingerprint(toy)) == "data: WORKBENCH_DATA changed"


def test_a_changed_claim_changes_the_fingerprint_of_its_item_alone(toy: ToyProject):
    def fingerprints():
        project = Project()
        return [Fingerprinter(project)(item, "laptop") for item in load_catalogue(project)]

    toy.declare('item("table-1")', 'item("table-2")')
    before = fingerprints()
    looser = 'Within("twice the size", quantity="bytes", where={"method": "A1"}, rel=0.5, because="it is counted")'
    toy.declare('item("table-1")', f'item("table-2", claims=({looser},))')
    assert [changes(*pair) for pair in zip(before, fingerprints(), strict=True)] == ["", "declaration changed"]


def test_the_digest_of_a_room_changes_with_each_of_its_modules_and_with_no_other():
    tool = {"lib.techniques.tool": "c", "lib.techniques.tool.method": "d"}
    modules = {"lib": "a", "lib.techniques": "b", "lib.models": "e", **tool}
    rooms = by_room(modules)
    assert list(rooms) == ["lib", "lib.models", "lib.techniques", "lib.techniques.tool"]
    changed = by_room(modules | {"lib.techniques.tool.method": "D"})
    assert [room for room in rooms if rooms[room] != changed[room]] == ["lib.techniques.tool"]
    assert changes({"library": rooms}, {"library": changed}) == "library: lib.techniques.tool changed"


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("workbench/one.py", True),
        ("workbench/new.py", True),
        ("README.md", False),
        ("reproductions/tool/recorded/one.json", False),
    ],
)
def test_a_commit_is_marked_where_what_numbers_depend_on_has_changed(tmp_path, changed, counts):
    for name in ("workbench/one.py", "README.md", "reproductions/tool/recorded/one.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    me = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*me, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    clean = commit_of(tmp_path)
    (tmp_path / changed).write_text("after")
    assert commit_of(tmp_path) == (f"{clean}+changes" if counts else clean)


def test_a_word_on_progress_changes_no_fingerprint_and_any_other_statement_does(tmp_path):
    telling = "from lib import say_progress\n\nfor step in range(3):\n    work()\n    say_progress(step)\n"
    silent = telling.replace("from lib import say_progress\n", "").replace("    say_progress(step)\n", "")
    texts = {"telling": telling, "silent": silent, "other": telling.replace("say_progress(step)", "say(step)")}
    digests = {
        name: library_of(tmp_path / name, {"study.py": text}).needed_by(["import study"])["study"]
        for name, text in texts.items()
    }
    assert digests["telling"] == digests["silent"] != digests["other"]
