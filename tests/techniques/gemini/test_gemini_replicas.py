"""A slot keeps a complete replica whatever happens to the one in progress: torn writes, flipped bits, kill -9."""

import functools
import os
import subprocess
import sys

import pytest
import torch

from workbench.techniques.gemini.runtime import BufferState, Slot, replicas

CAPACITY = 1000
RECORD_BYTES = 128


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch):
    """Room for 8 chunks, so that every byte of a slot can be tried."""
    monkeypatch.setattr(replicas, "MAX_CHUNKS", 8)
    monkeypatch.setattr(replicas, "DATA_START", RECORD_BYTES + 8 * 32)


@functools.cache
def content(iteration: int, num_bytes: int = CAPACITY) -> bytes:
    return bytes((iteration * 7 + position) % 251 for position in range(num_bytes))


def store(slot: Slot, iteration: int, num_bytes: int = CAPACITY, chunk_bytes: int = 300) -> None:
    data = content(iteration, num_bytes)
    slot.begin(iteration, num_bytes)
    for offset in range(0, num_bytes, chunk_bytes):
        slot.write(offset, data[offset : offset + chunk_bytes])
    slot.complete()


def made(*iterations: int) -> tuple[Slot, bytearray]:
    memory = bytearray(Slot.memory_bytes(CAPACITY))
    slot = Slot(memory, CAPACITY)
    for iteration in iterations:
        store(slot, iteration)
    return slot, memory


def held(memory: bytearray) -> list[int]:
    """What a reader that only has the memory finds, newest first; every byte is checked."""
    replicas = Slot(memory, CAPACITY).replicas()
    for replica in replicas:
        assert bytes(replica.data.numpy()) == content(replica.iteration, replica.data.numel())
    return sorted((replica.iteration for replica in replicas), reverse=True)


def test_the_newest_replica_and_the_one_before_are_held_and_going_back_discards_newer_and_corrupt_ones():
    # two page-rounded buffers: a record of 128 bytes, 8 chunks of 32 bytes, 1000 bytes of data = 1384 -> 4096
    assert Slot.memory_bytes(CAPACITY) == 2 * 4096
    slot, memory = made()
    assert slot.latest() is None
    for iteration, num_bytes, expected in ((1, CAPACITY, [1]), (2, CAPACITY, [2, 1]), (3, 77, [3, 2])):
        store(slot, iteration, num_bytes)
        assert held(memory) == expected
    assert slot.latest().data.numel() == 77, "a smaller one is as long as it is"
    slot, memory = made(4, 5)
    with pytest.raises(ValueError, match="iteration is 5; it must be after 5, which is complete"):
        slot.begin(5, CAPACITY)
    slot.discard_after(4)
    assert held(memory) == [4]
    store(slot, 5)
    assert held(memory) == [5, 4]
    memory[bytes(memory).index(content(5)) + 1] ^= 1
    Slot(memory, CAPACITY).begin(6, CAPACITY)
    assert held(memory) == [4]


def test_killed_after_any_byte_of_any_write_the_slot_still_holds_a_complete_replica():
    slot, memory = made(1, 2)
    states = [bytes(memory)]
    plain = slot._write_record
    slot._write_record = lambda *fields: (states.append(bytes(memory)), plain(*fields), states.append(bytes(memory)))
    store(slot, 3)
    states.append(bytes(memory))
    cuts = 0
    for before, after in zip(states, states[1:], strict=False):
        changed = [place for place in range(len(before)) if before[place] != after[place]]
        record_only = len(changed) <= RECORD_BYTES
        torn = bytearray(before)
        for count, place in enumerate(changed):
            torn[place] = after[place]
            if record_only or count % 97 == 0:
                cuts += 1
                found = held(torn)
                assert found[0] in (2, 3), found
        assert held(torn)[0] in (2, 3)
    assert cuts > 50
    assert held(memory) == [3, 2]


def test_one_flipped_bit_anywhere_never_gives_a_replica_that_is_not_what_was_written():
    _, memory = made(1, 2)
    unused = 0
    for place in range(len(memory)):
        memory[place] ^= 1 << place % 8
        found = held(memory)  # compares every byte
        assert found in ([2, 1], [2], [1]), place
        unused += found == [2, 1]
        memory[place] ^= 1 << place % 8
    # in use: of each buffer a record of 64 bytes, 4 chunks of 32 bytes, 1000 bytes of data
    assert len(memory) - unused == 2 * (64 + 4 * 32 + 1000)
    assert held(memory) == [2, 1]


def test_the_reason_why_a_buffer_is_not_used_is_told():
    slot, memory = made()
    assert [report.state for report in slot.reports()] == [BufferState.EMPTY] * 2
    store(slot, 1)
    slot.begin(2, CAPACITY)
    slot.write(0, content(2)[:300])
    report = Slot(memory, CAPACITY).reports()[1]
    assert (report.state, report.iteration) == (BufferState.INCOMPLETE, 2)
    assert report.reason == "begun and not completed"
    memory[bytes(memory).index(content(1)) + 305] ^= 16
    report = slot.reports()[0]
    assert (report.state, report.iteration) == (BufferState.CORRUPT, 1)
    assert report.reason == "the checksum of bytes [300, 600) is wrong"
    assert slot.latest() is None
    memory[RECORD_BYTES + 3] ^= 1
    assert slot.reports()[0].reason == "its chunk table's checksum is wrong"
    memory[8] ^= 1
    assert slot.reports()[0].reason == "its record's checksum is wrong"


def test_chunks_may_come_in_any_order_and_in_place_but_every_byte_once():
    slot, memory = made()
    data = content(1)
    slot.begin(1, CAPACITY)
    for offset in (600, 0, 300):
        slot.write(offset, data[offset : offset + 300])
    with pytest.raises(ValueError, match=r"bytes \[900, 1000\) are missing"):
        slot.complete()
    slot.view(900, 100).copy_(torch.frombuffer(bytearray(data[900:]), dtype=torch.uint8))  # received in place
    slot.commit(900, 100)
    slot.complete()
    assert held(memory) == [1]
    slot.begin(2, CAPACITY)
    slot.write(0, bytes(600))
    slot.write(500, bytes(500))
    with pytest.raises(ValueError, match=r"bytes \[500, 600\) are there twice"):
        slot.complete()


WRONG_USE = [
    (lambda slot: slot.begin(2, 1001), "num_bytes is 1001; it must be 1 to capacity_bytes, 1000"),
    (lambda slot: slot.write(0, b"x"), "no replica is in progress"),
    (lambda slot: Slot(bytes(8192), CAPACITY), "memory is read-only"),
    (lambda slot: Slot(bytearray(8000), CAPACITY), "memory is 8000 bytes; it must be 8192 for two buffers"),
    (lambda slot: Slot.memory_bytes(0), "capacity_bytes is 0"),
    (lambda slot: slot.begin(2, CAPACITY) or slot.write(900, bytes(200)), r"bytes are \[900, 1100\); they must be"),
]


def test_wrong_use_is_refused_and_spoils_no_replica():
    slot, memory = made(1)
    for call, message in WRONG_USE:
        with pytest.raises((ValueError, RuntimeError), match=message):
            call(slot)
        assert held(memory) == [1]


KILLING = """
import os, random, signal, sys, time
import torch
from workbench.techniques.gemini.runtime.replicas import Slot

SIZE, CHUNK = 1 << 20, 1 << 17
KILLS, MET, AT_MOST = map(int, sys.argv[1:])
fd = os.memfd_create("replica")
os.ftruncate(fd, Slot.memory_bytes(SIZE))

def content(iteration):
    return torch.full((SIZE,), iteration % 251, dtype=torch.uint8)

def write_for_ever(first, pipe):
    slot = Slot(fd, SIZE)
    for iteration in range(first, 1 << 30):
        data = content(iteration)
        slot.begin(iteration, SIZE)
        for offset in range(0, SIZE, CHUNK):
            slot.write(offset, data[offset : offset + CHUNK])
        slot.complete()
        os.write(pipe, iteration.to_bytes(8, "little"))

generator, newest, torn, kills = random.Random(0), 0, 0, 0
while kills < KILLS or (torn < MET and kills < AT_MOST):
    kills += 1
    reading, writing = os.pipe()
    writer = os.fork()
    if writer == 0:
        write_for_ever(newest + 1, writing)
    os.close(writing)
    os.read(reading, 8)
    time.sleep(generator.random() * 0.01)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    reported = newest + 1
    while number := os.read(reading, 8):
        reported = int.from_bytes(number, "little")
    os.close(reading)
    slot = Slot(fd, SIZE)
    found = slot.latest()
    assert found is not None and found.iteration in (reported, reported + 1), (found, reported)
    assert torch.equal(found.data, content(found.iteration))
    torn += any(report.state.value in ("incomplete", "corrupt") for report in slot.reports())
    newest = found.iteration
print(newest, torn)
"""


# how many kills meet a write is the machine's to say (a busy one stops the writer where it tells of its last): there
# are at least twenty, and then as many more as it takes for seven of them to have met one
def test_a_writer_killed_at_random_moments_leaves_a_complete_replica_each_time():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLING, "20", "7", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    newest, torn = map(int, done.stdout.split())
    assert newest >= 20
    assert torn >= 7, "so few kills met a write that the test shows nothing"
