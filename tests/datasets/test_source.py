"""Which place data comes from, and what is said when it is not there."""

import csv
import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from workbench.datasets import DataError, SourceKind, glue, wikitext2
from workbench.datasets.manifest import manifest_path
from workbench.datasets.source import Dataset, DataSource

pytestmark = pytest.mark.timeout(30)

ROWS = {"sentence": ["a fine film", "a dull film", "a song"], "label": [1, 0, 1], "idx": [0, 1, 2]}
COMMIT = "0" * 40


@pytest.fixture
def empty_machine(tmp_path, monkeypatch) -> Path:
    """A machine with no data at all: no folder named, an empty Hugging Face cache."""
    for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "WORKBENCH_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def write_folder(machine: Path, monkeypatch, *, sha256: str | None = None) -> Path:
    """Write sst2's training split as a `WORKBENCH_DATA` folder, with a manifest that describes it."""
    path = machine / "data-folder" / "glue" / "sst2" / "train.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pa.table(ROWS), path)
    with manifest_path().open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        if row["file"] == "glue/sst2/train.parquet":
            row["sha256"] = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
    root = machine / "root" / "data"
    root.mkdir(parents=True)
    with (root / "manifest.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setenv("WORKBENCH_ROOT", str(root.parent))
    monkeypatch.setenv("WORKBENCH_DATA", str(machine / "data-folder"))
    return path


def write_hub_cache(machine: Path, table: dict, shards: int = 1) -> None:
    """Write sst2's training split where `huggingface_hub` would keep it."""
    folder = machine / "hf" / "hub" / "datasets--nyu-mll--glue" / "snapshots" / COMMIT / "sst2"
    folder.mkdir(parents=True)
    whole = pa.table(table)
    for shard in range(shards):
        part = whole.slice(shard * len(whole) // shards, len(whole) // shards)
        parquet.write_table(part, folder / f"train-{shard:05}-of-{shards:05}.parquet")


def test_without_any_data_a_stand_in_is_generated_and_says_so(empty_machine):
    dataset = glue.load("sst2", "train")
    assert dataset.source.kind is SourceKind.STAND_IN
    assert not dataset.source.is_real
    assert "generated" in dataset.source.detail
    assert dataset.source.as_record()["source"] == "stand-in"


def test_the_folder_named_by_workbench_data_comes_before_the_hugging_face_cache(empty_machine, monkeypatch):
    write_hub_cache(empty_machine, {**ROWS, "sentence": ["x", "y", "z"]})
    path = write_folder(empty_machine, monkeypatch)
    dataset = glue.load("sst2", "train")
    assert dataset.source.kind is SourceKind.WORKBENCH_DATA
    assert dataset.source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert dataset.texts == (ROWS["sentence"],)


def test_the_hugging_face_cache_is_read_offline_and_its_shards_are_joined_in_order(empty_machine):
    write_hub_cache(empty_machine, ROWS | {"sentence": ["a", "b", "c"]}, shards=3)
    dataset = glue.load("sst2", "train")
    assert dataset.source.kind is SourceKind.HUB
    assert dataset.texts == (["a", "b", "c"],)
    assert "3 of 67,349 rows: a subset" in dataset.source.detail


def test_what_the_datasets_library_prepared_earlier_is_read_too(empty_machine):
    folder = empty_machine / "hf" / "datasets" / "Salesforce___wikitext" / "wikitext-2-v1" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    table = pa.table({"text": ["", " = Lobster = \n", " It is blue . \n"]})
    with pa.OSFile(str(folder / "wikitext-test.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    dataset = wikitext2.load("test")
    assert dataset.source.kind is SourceKind.HUB
    assert dataset.columns["text"] == ["", "= Lobster =", "It is blue ."]


def test_a_file_missing_from_the_named_folder_is_one_error_that_names_it(empty_machine, monkeypatch):
    write_folder(empty_machine, monkeypatch)
    with pytest.raises(DataError, match=r"glue/sst2/validation\.parquet is not in .*data-folder"):
        glue.load("sst2", "validation")


def test_a_file_with_other_bytes_than_the_manifest_says_is_refused_by_name(empty_machine, monkeypatch):
    write_folder(empty_machine, monkeypatch, sha256="f" * 64)
    with pytest.raises(DataError, match=r"sst2/train\.parquet has sha256 .* where the manifest has ffffffffffff"):
        glue.load("sst2", "train")


def test_a_variable_that_names_no_folder_is_refused_by_name(empty_machine, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DATA", str(empty_machine / "nowhere"))
    with pytest.raises(DataError, match="WORKBENCH_DATA is '.*nowhere', which is not a folder"):
        wikitext2.load("train")


def test_an_unknown_task_split_or_limit_is_refused_with_the_rule():
    with pytest.raises(ValueError, match="task is 'sst', must be one of cola, sst2"):
        glue.load("sst", "train")
    with pytest.raises(ValueError, match="split of mnli is 'validation', must be one of train, validation_matched"):
        glue.load("mnli", "validation")
    with pytest.raises(ValueError, match="split is 'valid', must be one of train, validation, test"):
        wikitext2.load("valid")
    with pytest.raises(ValueError, match="limit is 0, must be at least 1"):
        wikitext2.load("train", limit=0)


def test_a_smaller_sample_is_a_prefix_of_a_larger_one_and_another_seed_draws_other_rows(empty_machine):
    small, large = glue.load("rte", "train", 20, seed=1), glue.load("rte", "train", 50, seed=1)
    assert list(small.columns["idx"]) == list(large.columns["idx"][:20])
    assert len(set(large.columns["idx"])) == 50
    assert glue.load("rte", "train", 20, seed=2).columns["idx"] != small.columns["idx"]
    assert small.source.detail.startswith("20 rows chosen from: ")


def test_columns_of_unequal_length_are_refused():
    source = DataSource(name="x", kind=SourceKind.STAND_IN, detail="", sha256="")
    with pytest.raises(ValueError, match="columns of x: lengths .* must be equal"):
        Dataset(name="x", split="train", columns={"a": [1], "b": []}, text_columns=("a",), source=source)
