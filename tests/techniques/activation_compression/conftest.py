"""Open ranks for the tests that train or measure an encoder on them."""

import os
from unittest import mock

import pytest

PLACES = ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE")


@pytest.fixture(scope="module")
def run_on_open_ranks(pools, generated_data):
    """Give `run_on_ranks` on open ranks that find nothing but generated data."""
    home = {"HF_HOME": os.environ["HF_HOME"]}

    def run_on_ranks(run, num_ranks, *arguments, **_):
        def run_there():
            others = {name: value for name, value in os.environ.items() if name not in PLACES}
            with mock.patch.dict(os.environ, others | home, clear=True):
                return run(*arguments)

        return pools(num_ranks).run(run_there)

    return run_on_ranks
