"""The parts of one image, wherever they live, read as if they were one run of bytes.

What: finds which tensors a range of bytes touches and views them; no byte is copied.
Source: thesis, chapter 6 (Gemini), section 6.5.2. Simplified, left out: nothing.
"""

from __future__ import annotations

import bisect

import torch
from torch import Tensor

from workbench.techniques.gemini.runtime.entries import local_of
from workbench.techniques.gemini.runtime.layout import ALIGNMENT_BYTES, StateLayout
from workbench.techniques.gemini.runtime.leaves import raw_bytes

__all__ = ["Pieces"]


class Pieces:
    """Views of a head and of live tensors, laid out one after the other."""

    def __init__(self, layout: StateLayout, live: dict[str, Tensor]):
        self._blank = layout.blank_head()
        self.head = self._blank
        self._layout = layout
        self._num_bytes = layout.num_bytes
        self._entries = layout.entries
        self._starts = [entry.offset for entry in layout.entries]
        self._live = [live[entry.name] for entry in layout.entries]
        locals_ = [local_of(tensor) for tensor in self._live]
        self._places = [local.data_ptr() for local in locals_]
        self._raw = [raw_bytes(local) for local in locals_]
        self._gap = torch.zeros(ALIGNMENT_BYTES, dtype=torch.uint8)

    def are_of(self, live: dict[str, Tensor]) -> bool:
        """Say whether these tensors, and no others, are still where they were."""
        return len(live) == len(self._live) and all(
            live.get(entry.name) is tensor and local_of(tensor).data_ptr() == place
            for entry, tensor, place in zip(self._entries, self._live, self._places, strict=True)
        )

    def fill_head_(self, iteration: int, captured: bytes) -> None:
        """Replace the head by that of an iteration; see `StateLayout.fill_head`."""
        self.head = self._layout.fill_head(self._blank, iteration, captured)

    def views(self, offset: int, size: int) -> list[Tensor]:
        """View a range of bytes."""
        if offset < 0 or size < 0 or offset + size > self._num_bytes:
            raise ValueError(f"bytes [{offset}, {offset + size}) are not within [0, {self._num_bytes})")
        found, end = [], offset + size
        if offset < self.head.numel():
            found.append(self.head[offset:end])
            offset += found[0].numel()
        index = max(bisect.bisect_right(self._starts, offset) - 1, 0)
        while offset < end:
            view = self._view(index, offset, end)
            if view.numel():
                found.append(view)
            offset += view.numel()
            if index + 1 < len(self._starts) and offset >= self._starts[index + 1]:
                index += 1
        return found

    def read_into_(self, offset: int, out: Tensor) -> None:
        """Copy a range of bytes into a buffer that is as long."""
        views, done = self.views(offset, out.numel()), 0
        if all(view.device == out.device for view in views):
            torch.cat(views, out=out)  # one call for all of them
            return
        for view in views:
            out[done : done + view.numel()].copy_(view)
            done += view.numel()

    def _view(self, index: int, offset: int, end: int) -> Tensor:
        """View what one tensor, or the gap behind it, has of a range."""
        entry = self._entries[index]
        behind = entry.offset + entry.num_bytes
        if offset < behind:
            return self._raw[index][offset - entry.offset : end - entry.offset]
        following = self._starts[index + 1]
        return self._gap[: min(end, following) - offset]
