"""Open ranks that have read transformers, for the tests that train or measure an encoder on them."""

import os
from unittest import mock

import pytest

from workbench.launch import Ranks
from workbench.techniques.activation_compression.measured.fine_tuning import PRELOAD

PLACES = ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HOME")


@pytest.fixture(scope="session")
def four_ranks():
    with Ranks(4, preload=PRELOAD) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def run_on_open_ranks(four_ranks, generated_data):
    """Give `run_on_ranks` on four open ranks that find nothing but generated data."""
    places = {name: os.environ[name] for name in PLACES if name in os.environ}

    def run_on_ranks(run, num_ranks, *arguments, **_):
        def run_there():
            with mock.patch.dict(os.environ):
                for name in PLACES:
                    os.environ.pop(name, None)
                os.environ.update(places)
                return run(*arguments)

        assert num_ranks == 4
        return four_ranks.run(run_there)

    return run_on_ranks
