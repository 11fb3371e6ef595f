"""A machine without any data, and its Hugging Face caches."""

import pyarrow as pa
import pytest


@pytest.fixture
def empty_machine(tmp_path, monkeypatch):
    """A folder; no data folder is named, and the Hugging Face cache, its folder `hf`, is empty."""
    for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "WORKBENCH_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


@pytest.fixture
def prepare(empty_machine):
    """Write a table where the datasets library would prepare it: prepare(folder, file, columns)."""

    def write(folder, name, columns):
        place = empty_machine / "hf" / "datasets" / folder / "0.0.0" / "abc"
        place.mkdir(parents=True)
        table = pa.table(columns)
        with pa.OSFile(str(place / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)

    return write
