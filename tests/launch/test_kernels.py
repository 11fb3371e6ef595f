"""Jupyter kernels for ranks: installed, found by Jupyter, used by papermill, removed."""

import os
import subprocess
import sys

import pytest

from workbench.launch.kernels import (
    KernelPlace,
    RanksKernel,
    install_kernels,
    list_kernels,
    remove_kernels,
)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Jupyter folders of this test alone."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path


def test_installed_kernels_are_listed_and_removed():
    assert list_kernels() == []
    install_kernels()
    names = ["workbench-2-gpus", "workbench-2-ranks", "workbench-4-ranks"]
    assert [kernel.name for kernel in list_kernels()] == names
    assert [kernel.name for kernel in remove_kernels(["workbench-2-gpus"])] == names[:1]
    assert [kernel.name for kernel in remove_kernels()] == names[1:]
    assert list_kernels() == []


def test_the_user_s_kernel_hides_the_environment_s_as_in_jupyter(own_folders):
    install_kernels(["workbench-4-ranks"], KernelPlace.ENVIRONMENT)
    assert list_kernels()[0].folder.is_relative_to(own_folders / "environment")
    install_kernels(["workbench-4-ranks"], KernelPlace.USER)
    [kernel] = list_kernels()
    assert kernel.folder.is_relative_to(own_folders / "user")


def test_a_gpu_kernel_names_ranks_device_and_gpus():
    assert RanksKernel.named("workbench-3-gpus").specification()["env"] == {
        "WORKBENCH_NUM_RANKS": "3",
        "WORKBENCH_DEVICE": "cuda",
        "CUDA_VISIBLE_DEVICES": "0,1,2",
    }


@pytest.mark.parametrize("name", ["workbench-ranks", "workbench-0-ranks", "python3", "workbench-2-tpus"])
def test_a_wrong_name_is_refused_and_nothing_is_installed(name):
    with pytest.raises(ValueError, match=r"workbench-4-ranks|at least 1"):
        install_kernels(["workbench-4-ranks", name])
    assert list_kernels() == []
    with pytest.raises(ValueError, match="must be an installed one: none"):
        remove_kernels(["workbench-4-ranks"])


def test_jupyter_runs_an_installed_kernel_with_its_number_of_ranks():
    from jupyter_client.manager import start_new_kernel

    install_kernels(["workbench-3-ranks"])
    manager, client = start_new_kernel(kernel_name="workbench-3-ranks", startup_timeout=40)
    shown = []
    client.execute_interactive(
        "import os; print(os.environ['WORKBENCH_NUM_RANKS'])",
        timeout=20,
        output_hook=lambda message: shown.append(message["content"].get("text")),
    )
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert "3\n" in shown


def test_neither_listing_nor_importing_the_room_imports_torch():
    program = (
        "import sys, workbench.launch, workbench.launch.kernels as k; k.list_kernels();"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=dict(os.environ)
    )
    assert done.stdout == "False\n"
