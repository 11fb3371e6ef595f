"""The environment of ranks: what it sets, and that it does what it is there for."""

import os
import subprocess
import sys

import pytest

from workbench.launch import rank_environment

# A result of 64 MiB is made and dropped ten times; the page faults of the best time count.
FAULTS = """
import resource, torch
torch.set_num_threads(1)
x = torch.zeros(16 << 20)
def faults_of_one_result():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    x + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults_of_one_result() for _ in range(10)))
"""


def test_threads_and_interface_are_those_asked_for():
    environment = rank_environment(3, "eth1")
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"  # or NumPy would start threads before the fork
    assert environment["GLOO_SOCKET_IFNAME"] == "eth1"
    with pytest.raises(ValueError, match="threads_per_rank is 0; it must be at least 1"):
        rank_environment(0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of glibc")
def test_a_large_result_reuses_touched_memory():
    def page_faults(environment: dict[str, str]) -> int:
        done = subprocess.run(
            [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    assert page_faults({**plain, **rank_environment()}) < 10
    assert page_faults(plain) >= 30  # 64 MiB are 32 huge pages, or 16384 pages of 4 KiB
