"""ATP's released kernels, against the numbers that their description has."""

import os
from pathlib import Path

import pytest

from workbench.datasets import DataError
from workbench.datasets import kernel_traces as traces

HAS_DATA = Path(os.environ.get("WORKBENCH_DATA", ""), traces.FOLDER).is_dir() and "WORKBENCH_DATA" in os.environ


def test_a_missing_file_is_named(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    with pytest.raises(DataError, match=r"feed_forward_kernels\.csv is not there: WORKBENCH_DATA must name"):
        traces.fastest_s()


@pytest.mark.skipif(not HAS_DATA, reason="WORKBENCH_DATA has no atp-artifact")
def test_the_fastest_kernels_are_those_of_the_description():
    found = traces.fastest_s()
    assert (found["all_gather"], found["reduce_scatter"], found["gemm"]) == (0.000790, 0.000693, 0.000501)
