"""Messages: what lies in the pickle, what beside it, and that nothing stays behind."""

import gc
import os
import pickle

import numpy as np
import psutil
import pytest
import torch

from workbench.launch.messages import INLINE_BYTES, Handle, SharedFile, channel_pair, pack, unpack
from workbench.launch.processes import Listener


@pytest.fixture
def ends():
    pair = channel_pair()
    yield pair
    for end in pair:
        end.close()


def test_small_things_travel_inside_the_pickle_and_large_ones_beside_it():
    small, large = torch.zeros(100), torch.zeros(INLINE_BYTES // 4)
    assert len(pack([small, small]).frames) == 1
    message = pack([large, np.zeros(INLINE_BYTES, np.uint8), small])
    assert [frame.nbytes for frame in message.frames[1:]] == [INLINE_BYTES, INLINE_BYTES]


def test_one_tensor_named_twice_travels_once_and_its_views_still_share_it():
    large = torch.zeros(INLINE_BYTES)
    message = pack({"a": large, "b": large[1:], "c": large.view(2, -1)})
    assert len(message.frames) == 2  # the pickle and one buffer
    back = unpack(message.frames)
    back["b"].fill_(2.0)
    assert back["a"].sum() == back["c"].sum() == 2.0 * (INLINE_BYTES - 1)


def test_a_large_message_and_descriptors_arrive_together(ends):
    sender, receiver = ends
    with open(os.devnull) as file:
        sender.send(torch.arange(INLINE_BYTES), [file.fileno()])
    tensor, [fd] = receiver.receive_with_fds()
    assert torch.equal(tensor, torch.arange(INLINE_BYTES))
    assert os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
    os.close(fd)


def test_a_long_pickle_does_not_wait_for_its_reader(ends):
    sender, receiver = ends
    words = [str(number) for number in range(300_000)]  # some 2 MB, all in the pickle
    sender.send(words)  # would wait for ever in a socket's buffer
    assert receiver.receive() == words


def test_receivers_of_one_shared_file_change_only_their_own_copy(ends):
    shared = SharedFile(pack(torch.zeros(INLINE_BYTES)))
    ends[0].send_shared(shared)
    ends[0].send_shared(shared)
    shared.close()
    first, second = ends[1].receive(), ends[1].receive()
    first += 1
    assert second.sum() == 0


def test_memory_and_descriptors_are_given_back_with_the_last_tensor(ends):
    num_fds = psutil.Process().num_fds()
    ends[0].send(torch.zeros(INLINE_BYTES))
    tensor = ends[1].receive()
    assert psutil.Process().num_fds() == num_fds
    assert mappings() == 1
    row = tensor.view(2, -1)[1]
    del tensor
    assert row.sum() == 0  # still mapped
    del row
    gc.collect()
    assert mappings() == 0


def mappings() -> int:
    with open("/proc/self/maps") as file:
        return file.read().count("workbench-message")


def test_a_closed_end_is_reported_as_the_end_of_the_channel(ends):
    ends[0].close()
    with pytest.raises(EOFError, match="closed"):
        ends[1].receive()


def test_a_handle_means_nothing_outside_a_rank():
    message = pack(Handle(name="model", group="1"), lambda handle: handle.name)
    assert unpack(message.frames, {"model": 5}.__getitem__) == 5
    with pytest.raises(pickle.UnpicklingError, match="'model'"):
        unpack(message.frames)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.tensor(True),
        torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
        torch.empty(0, 3),
    ],
    ids=["transposed", "conjugate", "sparse", "bool", "bfloat16", "empty"],
)
def test_tensors_of_every_kind_are_the_same_after_the_journey(tensor):
    back = unpack(pack(tensor).frames)
    assert back.dtype == tensor.dtype and back.requires_grad == tensor.requires_grad
    assert back.layout == tensor.layout
    assert torch.equal(back.to_dense(), tensor.to_dense()) if tensor.is_sparse else torch.equal(back, tensor)


def test_a_source_that_another_handler_has_just_closed_is_passed_over():
    pairs = [channel_pair() for _ in range(2)]
    listener = Listener()

    def close_the_other(source, other):
        listener.remove(other)
        listener.remove(other)  # again does nothing
        other.close()
        return [source.receive()]

    for (_, source), (_, other) in (pairs, pairs[::-1]):
        listener.add(source, close_the_other, source, other)
    for sender, _ in pairs:
        sender.send("read")
    assert listener.wait(5.0) == ["read"]
    assert [source in listener for _, source in pairs].count(True) == 1
    for end in (end for pair in pairs for end in pair):
        end.close()
    listener.close()
