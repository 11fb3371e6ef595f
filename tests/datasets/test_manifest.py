"""The manifest: what it lists, what verifying finds, and that only fetching goes online."""

import hashlib
import os
import subprocess
import sys

import pytest

from workbench.datasets import DataError, glue, wikitext2
from workbench.datasets.manifest import FileStatus, entry_named, fetch, list_data, verify

pytestmark = pytest.mark.timeout(60)

REAL = os.environ.get("WORKBENCH_DATA", "")


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
    with pytest.raises(ValueError, match="name is 'gleu', must be one of glue/cola"):
        verify("gleu")


def run_python(code: str, **environment: str) -> str:
    """Run a few lines in a fresh interpreter and return what they print."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fetching_with_an_unreachable_hub_is_one_clear_error(tmp_path):
    code = (
        "from workbench.datasets.manifest import *\n"
        "try: fetch('wikitext-2')\nexcept Exception as error: print(type(error), error)"
    )
    printed = run_python(code, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0")
    for words in ("DataError", "cannot fetch wikitext-2 from Salesforce/wikitext on the hub", "WORKBENCH_DATA"):
        assert words in printed


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
