"""Jupyter kernels for ranks: installed, listed, removed."""

import sys

import pytest

from workbench.launch.kernels import KernelPlace, RanksKernel, install, installed, remove


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Jupyter folders of this test alone."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path


def test_installed_kernels_are_listed_and_removed_and_the_user_s_hides_the_environment_s(own_folders):
    assert installed() == {}
    folder = install(4)
    assert folder == own_folders / "environment/share/jupyter/kernels/workbench-4-ranks"
    install(2, device="cuda")
    install(4)  # again
    assert list(installed()) == ["workbench-2-gpus", "workbench-4-ranks"]
    assert remove("workbench-4-ranks") == folder
    assert list(installed()) == ["workbench-2-gpus"]
    with pytest.raises(ValueError, match="'python3'; it must be one that .* installed: workbench-2-gpus"):
        remove("python3")
    of_user = install(2, device="cuda", place=KernelPlace.USER)
    assert of_user.is_relative_to(own_folders / "user")
    assert installed() == {"workbench-2-gpus": of_user}  # as in Jupyter


def test_a_gpu_kernel_names_ranks_device_and_gpus():
    kernel = RanksKernel.named("workbench-3-gpus")
    assert kernel == RanksKernel(num_ranks=3, device="cuda")
    assert kernel.specification()["env"] == {
        "WORKBENCH_NUM_RANKS": "3",
        "WORKBENCH_DEVICE": "cuda",
        "CUDA_VISIBLE_DEVICES": "0,1,2",
    }


@pytest.mark.parametrize(
    ("refused", "rule"),
    [
        (lambda: RanksKernel.named("workbench-ranks"), "like workbench-4-ranks"),
        (lambda: RanksKernel.named("workbench-0-ranks"), "at least 1"),
        (lambda: RanksKernel.named("python3"), "like workbench-4-ranks"),
        (lambda: RanksKernel.named("workbench-2-tpus"), "like workbench-4-ranks"),
        (lambda: install(0), "num_ranks is 0"),
        (lambda: install(1, device="tpu"), "device is 'tpu'"),
    ],
)
def test_wrong_kernels_are_refused_before_anything_is_written(refused, rule, own_folders):
    with pytest.raises(ValueError, match=rule):
        refused()
    assert list(own_folders.iterdir()) == []
