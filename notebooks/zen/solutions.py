"""Solutions of the functions that the lesson asks for."""

import torch
import torch.distributed as dist


def bitmap(members, indices):
    """Set the bit of each index's place among the members."""
    bits = bytearray(-(-len(members) // 8))
    for index in indices:
        place = members.index(index)
        bits[place // 8] |= 1 << place % 8
    return bytes(bits)


def push(indices, values, servers, size, exchange):
    """Send each server its own indices, and add what arrives; a rank without indices sends empty messages."""
    is_own = [servers == server for server in range(dist.get_world_size())]
    sums = torch.zeros(size)
    for arrived, added in exchange([(indices[mask], values[mask]) for mask in is_own]):
        sums[arrived] += added
    return sums
