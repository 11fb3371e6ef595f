"""A slot keeps a complete replica whatever happens to the one in progress: torn writes, flipped bits, kill -9."""

import functools
import os

import pytest

from workbench.techniques.gemini.runtime import Slot, replicas

NUM_BYTES = 1000


@functools.cache
def content(iteration: int, num_bytes: int = NUM_BYTES) -> bytes:
    return bytes((iteration * 7 + position) % 251 for position in range(num_bytes))


class Memory:
    """Files in memory, as a machine keeps them for its ranks."""

    def __init__(self, num_buffers: int = 2):
        self.num_buffers, self.files = num_buffers, {}

    def open_file(self, buffer: int, num_bytes: int) -> int:
        if buffer not in self.files:
            self.files[buffer] = os.memfd_create(f"buffer {buffer}")
            os.ftruncate(self.files[buffer], num_bytes)
        return os.dup(self.files[buffer])

    def slot(self) -> Slot:
        """What a reader has that finds the memory after a restart."""
        return Slot(self.num_buffers, self.open_file, sorted(self.files))

    def read(self) -> list[bytes]:
        return [os.pread(file, 1 << 20, 0) for _, file in sorted(self.files.items())]

    def write(self, contents: list[bytes]) -> None:
        for (_, file), data in zip(sorted(self.files.items()), contents, strict=True):
            os.pwrite(file, data, 0)

    def flip(self, buffer: int, place: int) -> None:
        (byte,) = os.pread(self.files[buffer], 1, place)
        os.pwrite(self.files[buffer], bytes([byte ^ (1 << place % 8)]), place)

    def held(self) -> list[int]:
        """The complete replicas, newest first; every byte is checked."""
        replicas = self.slot().replicas()
        for replica in replicas:
            assert bytes(replica.data.numpy()) == content(replica.iteration, replica.data.numel())
        return sorted((replica.iteration for replica in replicas), reverse=True)


def made(*iterations: int, num_buffers: int = 2) -> tuple[Slot, Memory]:
    memory = Memory(num_buffers)
    slot = memory.slot()
    for iteration in iterations:
        slot.write(iteration, content(iteration))
    return slot, memory


def test_the_newest_replicas_are_held_and_going_back_discards_newer_and_corrupt_ones():
    slot, memory = made()
    assert slot.latest() is None
    for iteration, num_bytes, expected in (
        (1, NUM_BYTES, [1]),
        (2, 9000, [2, 1]),
        (3, 77, [3, 2]),
        (4, 70_000, [4, 3]),
    ):
        slot.write(iteration, content(iteration, num_bytes))  # files grow where they must
        assert memory.held() == expected
    assert slot.latest().data.numel() == 70_000, "a smaller or larger one is as long as it is"
    slot, memory = made(4, 5)
    with pytest.raises(ValueError, match="iteration is 5; it must be after 5, which is complete"):
        slot.begin(5, NUM_BYTES)
    slot.discard_after(4)
    assert memory.held() == [4]
    slot.write(5, content(5))
    assert memory.held() == [5, 4]
    memory.flip(1, 4096 + 1)
    memory.slot().begin(6, NUM_BYTES)
    assert memory.held() == [4]
    _, memory = made(1, 2, 3, 4, num_buffers=3)
    assert memory.held() == [4, 3, 2]


def test_killed_after_any_byte_of_any_write_the_slot_still_holds_a_complete_replica(monkeypatch):
    slot, memory = made(1, 2)
    states, plain = [memory.read()], replicas._Buffer.write_record
    monkeypatch.setattr(
        replicas._Buffer,
        "write_record",
        lambda *fields: (states.append(memory.read()), plain(*fields), states.append(memory.read())),
    )
    slot.write(3, content(3))
    cuts = 0
    for before, after in zip(states, states[1:], strict=False):
        changed = [(i, at) for i, data in enumerate(before) for at in range(len(data)) if data[at] != after[i][at]]
        torn = [bytearray(data) for data in before]
        for count, (buffer, place) in enumerate(changed):
            torn[buffer][place] = after[buffer][place]
            if len(changed) < 100 or count % 97 == 0:
                cuts += 1
                memory.write(torn)
                assert memory.held()[0] in (2, 3)
        memory.write(after)
        assert memory.held()[0] in (2, 3)
    assert cuts > 50
    assert memory.held() == [3, 2]


def test_one_flipped_bit_anywhere_never_gives_a_replica_that_is_not_what_was_written():
    _, memory = made(1, 2)
    unused = 0
    # in use of each buffer: a record of 8 + 8 + 8 + 16 bytes and its checksum of 16, 1000 bytes of data
    in_use = [*range(40 + 16), 4096, *range(4100, 4096 + 1000, 37), 4096 + 999]
    beside = [40 + 16, *range(60, 4096, 400), 4095]
    for buffer in (0, 1):
        for place in (*in_use, *beside):
            memory.flip(buffer, place)
            held = memory.held()  # compares every byte
            assert held in ([2, 1], [2], [1]), place
            unused += held == [2, 1]
            memory.flip(buffer, place)
    assert unused == 2 * len(beside)
    assert memory.held() == [2, 1]


def test_the_reason_why_a_buffer_is_not_used_is_told():
    slot, memory = made(1)
    assert [(replica.iteration, replica.fault) for replica in slot.examined()] == [(1, "")]
    slot.begin(2, NUM_BYTES)[:300] = 1
    replica = memory.slot().examined()[1]
    assert (replica.iteration, replica.fault) == (2, "begun and not completed")
    memory.flip(0, 4096 + 305)
    replica = slot.examined()[0]
    assert (replica.iteration, replica.fault) == (1, "the checksum of its data is wrong")
    assert slot.latest() is None
    memory.flip(0, 8)
    assert slot.examined()[0].fault == "its record's checksum is wrong"
    with pytest.raises(ValueError, match="num_bytes is 0"):
        slot.begin(3, 0)
    with pytest.raises(RuntimeError, match="no replica is in progress"):
        made()[0].complete(bytes(16))
