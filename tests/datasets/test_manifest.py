"""The manifest: what it lists, what verifying finds, and that only fetching goes online."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.datasets import DataError, glue, wikitext2
from workbench.datasets.manifest import FileStatus, entry_named, fetch, list_data, verify

pytestmark = pytest.mark.timeout(60)

REAL = os.environ.get("WORKBENCH_DATA", "")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    """An empty Hugging Face cache and no data folder."""
    for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "WORKBENCH_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


def test_the_manifest_lists_every_data_set_with_licence_origin_and_checksums():
    entries = {entry.name: entry for entry in list_data()}
    assert {f"glue/{task}" for task in glue.TASKS} | {"wikitext-2", "all-MiniLM-L6-v2"} <= set(entries)
    for entry in entries.values():
        assert entry.licence and entry.origin and entry.hub_id
        if not entry.is_model:
            assert all(len(file.sha256) == 64 and file.rows and file.num_bytes for file in entry.files)


def test_splits_and_published_sizes_agree_with_the_manifest():
    for task in glue.TASKS.values():
        files = {file.split: file for file in entry_named(f"glue/{task.name}").files}
        assert set(files) == set(task.published_rows)
        is_whole = all(files[split].rows == rows for split, rows in task.published_rows.items())
        assert is_whole == (task.name not in {"qqp", "mnli", "qnli"})
    lines = {file.split: file.rows for file in entry_named("wikitext-2").files}
    assert lines == dict(wikitext2.PUBLISHED_LINES)


def test_files_that_are_nowhere_are_reported_missing(empty_cache):
    checks = verify("glue/rte")
    assert [check.status for check in checks] == [FileStatus.MISSING, FileStatus.MISSING]


def test_a_cached_file_is_verified_against_the_digest_the_hub_stores_it_under(empty_cache):
    blobs = empty_cache / "datasets--nyu-mll--glue" / "blobs"
    folder = empty_cache / "datasets--nyu-mll--glue" / "snapshots" / "c" / "rte"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    for split, content in (("train", b"rows"), ("validation", b"other rows")):
        blob = blobs / hashlib.sha256(b"rows").hexdigest()
        blob = blob if split == "train" else blobs / hashlib.sha256(b"what was sent").hexdigest()
        blob.write_bytes(content)
        (folder / f"{split}-00000-of-00001.parquet").symlink_to(blob)
    assert [check.status for check in verify("glue/rte")] == [FileStatus.OK, FileStatus.DIFFERS]


def test_a_folder_of_names_verifies_all_below_it(empty_cache):
    assert len(verify("glue")) == 16


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="name is 'gleu', must be one of glue/cola"):
        verify("gleu")


def run_python(code: str, **environment: str) -> str:
    """Run a few lines in a fresh interpreter and return what they print."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FETCH = "from workbench.datasets.manifest import *\ntry: fetch('wikitext-2')\nexcept Exception as e: print(type(e), e)"


def test_fetching_with_an_unreachable_hub_is_one_clear_error(tmp_path):
    printed = run_python(FETCH, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0")
    assert "DataError" in printed
    assert "cannot fetch wikitext-2 from Salesforce/wikitext on the hub" in printed
    assert "WORKBENCH_DATA" in printed


def test_fetching_in_offline_mode_is_refused_before_anything_is_tried(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="cannot fetch wikitext-2: HF_HUB_OFFLINE is set"):
        fetch("wikitext-2")


def test_listing_verifying_and_loading_import_neither_torch_nor_the_hub_client():
    code = (
        "import sys\nfrom workbench.datasets import glue, manifest\n"
        "manifest.list_data(); manifest.verify('glue/rte'); glue.load('rte', 'validation')\n"
        "print([name for name in ('torch', 'datasets', 'huggingface_hub', 'transformers') if name in sys.modules])"
    )
    assert run_python(code, WORKBENCH_DATA="").strip() == "[]"


@pytest.mark.skipif(not REAL, reason="WORKBENCH_DATA names no folder of real data")
def test_the_real_folder_verifies_and_loads_whole():
    assert {check.status for name in ("glue", "wikitext-2") for check in verify(name)} == {FileStatus.OK}
    validation = glue.load("sst2", "validation")
    assert (len(validation), sum(validation.labels)) == (872, 444)
    assert sum(len(line.split()) for line in wikitext2.load("validation").columns["text"]) == 213_886
    assert "subset" in glue.load("qnli", "validation").source.detail
