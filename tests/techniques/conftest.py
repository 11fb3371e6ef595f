"""Pools of warm ranks and the same data on every machine, for the tests of all techniques."""

import contextlib
import functools

import pytest

from workbench.launch import Ranks

LOADED = (
    "workbench.models.bert",
    "workbench.techniques.activation_compression.measured.iterations",
    "workbench.techniques.flextp.runtime",
    "workbench.techniques.gemini.measured.reliability",
    "workbench.techniques.gemini.runtime.checkpoints",
    "torch._dynamo",
    "torch.distributed.fsdp",
)


@pytest.fixture(scope="session")
def pools():
    """Pools of ranks by their number; a pool that a failed rank has ended starts again by itself."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda num_ranks: stack.enter_context(Ranks(num_ranks, preload=LOADED, timeout_s=100)))


@pytest.fixture(scope="module")
def generated_data(tmp_path_factory):
    """Leave nothing but generated data to be found, whatever is on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
            patch.delenv(variable, raising=False)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        yield
