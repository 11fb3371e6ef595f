"""What was measured on an H100, and the profile of a codec on this machine."""

import time

import pytest
import torch

from workbench.compression import EFSign, ErrorFeedback, Identity, RandomK
from workbench.compression.profiling import profile_codec
from workbench.models import h100
from workbench.models.architectures import ARCHITECTURES, architecture


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_measured_gradients_are_those_of_the_architecture(name):
    measured, sizes = h100.load(name), [p.numel() for p in architecture(name).parameters()]
    assert sorted(measured.num_elements) == sorted(sizes)
    assert 0.3 < measured.forward_s / measured.backward_s < 1


def test_an_unknown_model_is_named():
    with pytest.raises(ValueError, match="model is 'alexnet'; it must be one of vgg16, resnet50"):
        h100.load("alexnet")


def test_a_codec_is_profiled_by_size():
    times = profile_codec(lambda: ErrorFeedback(EFSign()).for_site("a"), [64, 6400], device="cpu", runs=1)
    assert [row.num_elements for row in times] == [64, 6400]
    assert [row.payload_bytes for row in times] == [EFSign().encode(torch.randn(size)).num_bytes for size in (64, 6400)]
    assert all(row.encode_s > 0 and row.decode_s > 0 for row in times)
    with pytest.raises(ValueError, match=r"num_elements\[0\]"):
        profile_codec(lambda: RandomK(0.5), [0], device="cpu")


class _Waiting(Identity):
    """Waits for 5 ms without the processor."""

    def encode(self, x):
        time.sleep(0.005)
        return super().encode(x)


def test_of_ranks_that_share_cores_the_processor_seconds_count():
    (alone,) = profile_codec(_Waiting, [64], device="cpu", runs=1)
    (shared,) = profile_codec(_Waiting, [64], device="cpu", runs=1, ranks_a_core=2.0)
    assert shared.encode_s < 0.002 and alone.encode_s >= 0.005
