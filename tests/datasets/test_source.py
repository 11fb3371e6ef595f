"""The place that data comes from, its manifest, and the generated text that stands in for it."""

import csv
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from cases import refusals
from pyarrow import parquet

from workbench.datasets import DataError, SourceKind, glue, stand_in, wikitext2
from workbench.datasets.manifest import FileStatus, entry_named, fetch, list_data, manifest_path, verify
from workbench.datasets.source import Dataset, DataSource

REAL = os.environ.get("WORKBENCH_DATA", "")

ROWS = {"sentence": ["a fine film", "a dull film", "a song"], "label": [1, 0, 1], "idx": [0, 1, 2]}


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
    folder = machine / "hf" / "hub" / "datasets--nyu-mll--glue" / "snapshots" / "commit" / "sst2"
    folder.mkdir(parents=True)
    whole = pa.table(table)
    for shard in range(shards):
        part = whole.slice(shard * len(whole) // shards, len(whole) // shards)
        parquet.write_table(part, folder / f"train-{shard:05}-of-{shards:05}.parquet")


def test_without_any_data_a_stand_in_is_generated_and_says_so(empty_machine):
    source = glue.load("sst2", "train").source
    assert source.kind is SourceKind.STAND_IN and not source.is_real
    assert "generated" in source.detail and source.as_record()["source"] == "stand-in"


def test_the_folder_named_by_workbench_data_comes_before_the_hugging_face_cache(empty_machine, monkeypatch):
    write_hub_cache(empty_machine, {**ROWS, "sentence": ["x", "y", "z"]})
    path = write_folder(empty_machine, monkeypatch)
    dataset = glue.load("sst2", "train")
    assert dataset.source.kind is SourceKind.WORKBENCH_DATA
    assert dataset.source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert dataset.texts == (ROWS["sentence"],)


def test_the_hugging_face_caches_are_read_offline_and_shards_are_joined_in_order(empty_machine, prepare):
    write_hub_cache(empty_machine, ROWS | {"sentence": ["a", "b", "c"]}, shards=3)
    dataset = glue.load("sst2", "train")
    assert dataset.source.kind is SourceKind.HUB
    assert dataset.texts == (["a", "b", "c"],)
    assert "3 of 67,349 rows: a subset" in dataset.source.detail
    text = ["", " = Lobster = \n", " It is blue . \n"]
    prepare("Salesforce___wikitext/wikitext-2-v1", "wikitext-test.arrow", {"text": text})
    dataset = wikitext2.load("test")
    assert dataset.source.kind is SourceKind.HUB
    assert dataset.columns["text"] == ["", "= Lobster =", "It is blue ."]


def test_a_file_that_is_missing_or_has_other_bytes_than_the_manifest_says_is_refused_by_name(
    empty_machine, monkeypatch
):
    write_folder(empty_machine, monkeypatch, sha256="f" * 64)
    with pytest.raises(DataError, match=r"glue/sst2/validation\.parquet is not in .*data-folder"):
        glue.load("sst2", "validation")
    with pytest.raises(DataError, match=r"sst2/train\.parquet has sha256 .* where the manifest has ffffffffffff"):
        glue.load("sst2", "train")
    monkeypatch.setenv("WORKBENCH_DATA", str(empty_machine / "nowhere"))
    with pytest.raises(DataError, match="WORKBENCH_DATA is '.*nowhere', which is not a folder"):
        wikitext2.load("train")


def uneven_columns():
    source = DataSource(name="x", kind=SourceKind.STAND_IN, detail="", sha256="")
    return Dataset(name="x", split="train", columns={"a": [1], "b": []}, text_columns=("a",), source=source)


test_unknown_tasks_and_splits_and_uneven_columns_are_refused = refusals(
    (lambda: glue.load("sst", "train"), "task is 'sst'; it must be one of cola, sst2"),
    (lambda: glue.load("mnli", "validation"), "split of mnli is 'validation'"),
    (lambda: wikitext2.load("train", limit=0), "limit is 0, must be at least 1"),
    (uneven_columns, "columns of x: lengths .* must be equal"),
)


def test_a_smaller_sample_is_a_prefix_of_a_larger_one_and_another_seed_draws_other_rows(empty_machine):
    small, large = glue.load("rte", "train", 20, seed=1), glue.load("rte", "train", 50, seed=1)
    assert list(small.columns["idx"]) == list(large.columns["idx"][:20])
    assert len(set(large.columns["idx"])) == 50
    assert glue.load("rte", "train", 20, seed=2).columns["idx"] != small.columns["idx"]
    assert small.source.detail.startswith("20 rows chosen from: ")


@pytest.mark.parametrize("task", list(glue.TASKS))
def test_a_stand_in_has_the_columns_and_label_codes_of_its_task(task):
    spec = glue.TASKS[task]
    columns = stand_in.glue_columns(task, spec.text_columns, spec.validation_split)
    assert list(columns) == [*spec.text_columns, "label", "idx"]
    assert len(columns["label"]) == 400
    labels = set(columns["label"])
    if spec.is_regression:
        assert min(labels) == 0.0 and max(labels) == 5.0
    else:
        assert labels == set(range(spec.num_outputs))


def pairs_of(task):
    columns = stand_in.glue_columns(task, ("one", "two"), "validation")
    return zip(columns["one"], columns["two"], columns["label"], strict=True)


def test_labels_follow_the_rules_of_their_task():
    sentiment = stand_in.glue_columns("sst2", ("sentence",), "validation")
    for sentence, label in zip(sentiment["sentence"], sentiment["label"], strict=True):
        assert sentence.split()[1] in (stand_in.GOOD if label else stand_in.BAD)  # the adjective
    for left, right, score in pairs_of("stsb"):
        shared = sum(a == b for a, b in zip(left.split(), right.split(), strict=True)) - 2  # "the" stands twice in each
        assert score == 5 * shared / 4
    for left, right, label in pairs_of("mrpc"):  # paraphrases differ by synonyms only
        reworded = " ".join(stand_in.SYNONYMS.get(word, word) for word in left.split())
        assert (right == reworded) == bool(label)


def test_generated_rows_are_the_same_on_every_machine():
    text = stand_in.running_text("test")
    assert text[0].startswith("= ") and text[10].startswith("= ")
    pairs = stand_in.glue_columns("rte", ("sentence1", "sentence2"), "validation")
    assert [stand_in.stand_in_source("", columns, "", "").sha256 for columns in ({"text": text}, pairs)] == [
        "f7af637160a697a8e626b1e5a5cdaa88dd35752f5274d35fb9742f2911bfd947",
        "b9efedef9c878411c4dc5695cab13f59e6e2c94af710deb34703d763eef96cc6",
    ]


def test_the_manifest_lists_every_data_set_with_licence_origin_checksums_splits_and_published_sizes():
    entries = {entry.name: entry for entry in list_data()}
    assert {f"glue/{task}" for task in glue.TASKS} | {"wikitext-2", "all-MiniLM-L6-v2"} <= set(entries)
    for entry in entries.values():
        assert entry.licence and entry.origin and entry.hub_id
        if not entry.is_model:
            assert all(len(file.sha256) == 64 and file.rows and file.num_bytes for file in entry.files)
    for task in glue.TASKS.values():
        files = {file.split: file for file in entry_named(f"glue/{task.name}").files}
        assert set(files) == set(task.published_rows)
        is_whole = all(files[split].rows == rows for split, rows in task.published_rows.items())
        assert is_whole == (task.name not in {"qqp", "mnli", "qnli"})
    lines = {file.split: file.rows for file in entry_named("wikitext-2").files}
    assert lines == dict(wikitext2.PUBLISHED_LINES)


def test_a_cached_file_is_verified_against_the_digest_the_hub_stores_it_under(empty_machine):
    assert [check.status for check in verify("glue/rte")] == [FileStatus.MISSING] * 2
    assert len(verify("glue")) == 16
    place = empty_machine / "hf" / "hub" / "datasets--nyu-mll--glue"
    blobs, folder = place / "blobs", place / "snapshots" / "c" / "rte"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    for split, content, hashed in (("train", b"rows", b"rows"), ("validation", b"other rows", b"what was sent")):
        blob = blobs / hashlib.sha256(hashed).hexdigest()
        blob.write_bytes(content)
        (folder / f"{split}-00000-of-00001.parquet").symlink_to(blob)
    assert [check.status for check in verify("glue/rte")] == [FileStatus.OK, FileStatus.DIFFERS]
    with pytest.raises(ValueError, match="name is 'gleu'; it must be one of glue/cola"):
        verify("gleu")


def run_python(code: str, **environment: str) -> str:
    """Run a few lines in a fresh interpreter and return what they print."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fetching_offline_is_refused_and_with_an_unreachable_hub_one_clear_error(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="cannot fetch wikitext-2: HF_HUB_OFFLINE is set"):
        fetch("wikitext-2")
    code = (
        "from workbench.datasets.manifest import *\n"
        "try: fetch('wikitext-2')\nexcept Exception as error: print(type(error), error)"
    )
    printed = run_python(code, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0")
    for words in ("DataError", "cannot fetch wikitext-2 from Salesforce/wikitext on the hub", "WORKBENCH_DATA"):
        assert words in printed


@pytest.mark.skipif(not REAL, reason="WORKBENCH_DATA names no folder of real data")
def test_the_real_folder_verifies_and_loads_whole():
    assert {check.status for name in ("glue", "wikitext-2") for check in verify(name)} == {FileStatus.OK}
    validation = glue.load("sst2", "validation")
    assert (len(validation), sum(validation.labels)) == (872, 444)
    assert sum(len(line.split()) for line in wikitext2.load("validation").columns["text"]) == 213_886
    assert "subset" in glue.load("qnli", "validation").source.detail
