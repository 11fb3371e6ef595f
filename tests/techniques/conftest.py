"""The same data on every machine, for the tests of all techniques."""

import pytest


@pytest.fixture(scope="module")
def generated_data(tmp_path_factory):
    """Leave nothing but generated data to be found, whatever is on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
            patch.delenv(variable, raising=False)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        yield
