"""Memory that a machine keeps for its ranks: it outlives every rank and dies with the machine.

The agent makes anonymous files in memory and hands their descriptors to its ranks. They have no name in any file
system, so the kernel frees them when the last process of the machine is gone, however it went.

Source: Linux memfd_create(2), unix(7) (SCM_RIGHTS).
Simplified: sizes are counted as promised; the kernel gives pages when they are first touched.
Left out: giving memory back before the machine ends.
"""

import os

__all__ = ["MachineMemory"]


class MachineMemory:
    """Named files in memory.

    Args:
        limit_bytes: most bytes of all together; None for no limit.

    Raises:
        ValueError: if the limit is below 0.
    """

    def __init__(self, limit_bytes: int | None = None):
        if limit_bytes is not None and not limit_bytes >= 0:
            raise ValueError(f"limit_bytes is {limit_bytes!r}; it must be None or at least 0")
        self.limit_bytes = limit_bytes
        self._files: dict[str, tuple[int, int]] = {}  # name -> descriptor, bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all memory together."""
        return sum(num_bytes for _, num_bytes in self._files.values())

    def names(self) -> dict[str, int]:
        """Return the bytes of each memory by its name."""
        return {name: num_bytes for name, (_, num_bytes) in self._files.items()}

    def allocate(self, name: str, num_bytes: int) -> int:
        """Return the descriptor of a memory, filled with zeros when it is new.

        Args:
            name: the same name gives the same memory again.
            num_bytes: its size; the same whenever it is asked for.

        Raises:
            ValueError: if the size is not positive or differs from before, or the limit would be passed.
        """
        if name in self._files:
            fd, kept_bytes = self._files[name]
            if num_bytes != kept_bytes:
                raise ValueError(f"num_bytes of {name!r} is {num_bytes!r}; it must be {kept_bytes} as before")
            return fd
        self._check_new(name, num_bytes)
        fd = os.memfd_create(f"workbench-{name}")
        os.truncate(fd, num_bytes)
        self._files[name] = fd, num_bytes
        return fd

    def _check_new(self, name: str, num_bytes: int) -> None:
        if not name:
            raise ValueError(f"name is {name!r}; a memory must have one")
        if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 1:
            raise ValueError(f"num_bytes of {name!r} is {num_bytes!r}; it must be an integer of at least 1")
        if self.limit_bytes is not None and self.num_bytes + num_bytes > self.limit_bytes:
            rule = f"with the {self.num_bytes} kept already it must stay within {self.limit_bytes}"
            raise ValueError(f"num_bytes of {name!r} is {num_bytes}; {rule}")

    def close(self) -> None:
        """Close this process's descriptors; memory that others hold lives on."""
        for fd, _ in self._files.values():
            os.close(fd)
        self._files.clear()
