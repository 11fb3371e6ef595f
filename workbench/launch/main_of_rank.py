"""The module `__main__` of a rank: classes and functions of the caller's script or notebook are found there by name.

They travel by value, because a rank does not import the script. What a rank then pickles by name, as `torch.save`,
`pickle` and the workers of a data loader do, is found here, and the script finds it in its own `__main__`.
"""

import importlib.machinery
import os
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import cloudpickle

__all__ = ["ByValuePickler", "MainModule", "MainOfRank", "dumps_by_value"]

# Classes that were made from a message; `cloudpickle` has its record of all classes that were sent, for as long.
_RECEIVED: weakref.WeakSet[type] = weakref.WeakSet()


@dataclass(frozen=True, kw_only=True, slots=True)
class MainModule:
    """Where `__main__` comes from, so that processes that a rank spawns can import it."""

    file: str | None  # path of the script; None in a notebook
    name: str | None  # of the module, if it was started by `python -m`

    @classmethod
    def of_this_process(cls) -> "MainModule":
        """Describe this process's own."""
        main = sys.modules["__main__"]
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        return cls(file=file if file and os.path.isfile(file) else None, name=spec.name if spec else None)


class MainOfRank(types.ModuleType):
    """What cells of a rank define, and behind it what has come from the caller's `__main__`, the newest of a name."""

    __slots__ = ("_received",)  # no attribute, or cells would find it among their names

    def __init__(self, origin: MainModule):
        super().__init__("__main__")
        self._received = types.SimpleNamespace()
        if origin.file is not None:
            self.__file__ = origin.file
        if origin.name is not None:
            self.__spec__ = importlib.machinery.ModuleSpec(origin.name, None)

    @classmethod
    def enter(cls, origin: MainModule) -> None:
        """Make a new one this process's `__main__`, by the name that `multiprocessing` has for it as well."""
        sys.modules["__main__"] = sys.modules["__mp_main__"] = cls(origin)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._received, name)
        except AttributeError:
            raise AttributeError(f"{self!r} has no attribute {name!r}") from None

    def __repr__(self) -> str:
        return "<module '__main__' of a rank, which has the classes and functions that calls have brought>"

    def receive(self, qualname: str, item: Any) -> None:
        """Let an item be found by its name, "Outer.Inner" within a class that has not come."""
        *outer, name = qualname.split(".")
        place = self._received
        for part in outer:
            if not hasattr(place, part):
                setattr(place, part, types.SimpleNamespace())
            place = getattr(place, part)
        setattr(place, name, item)


class ByValuePickler(cloudpickle.Pickler):
    """Pickles classes and functions of `__main__` by value; a rank that unpickles them has them in its own."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if type(reduced) is not tuple or len(reduced) != 6:  # not by value
            return reduced
        make, args, state, _, _, set_state = reduced
        if isinstance(obj, type):
            state, set_state = (set_state, state), _fill_class
        return _received, (make, args, _name_in_main(obj)), state, None, None, set_state


def dumps_by_value(obj: Any) -> bytes:
    """Pickle an object, functions and classes of `__main__` included."""
    file = BytesIO()
    ByValuePickler(file, protocol=5).dump(obj)
    return file.getvalue()


def _name_in_main(item: Any) -> str | None:
    """Return the name by which `__main__` has an item now; None for an older definition, and for other modules."""
    if item.__module__ != "__main__":
        return None
    place: Any = sys.modules["__main__"]
    for part in item.__qualname__.split("."):
        place = getattr(place, part, None)
    return item.__qualname__ if place is item else None


def _received(make: Callable[..., Any], args: tuple, name: str | None) -> Any:
    is_known = args[-2] in cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID  # the id of a class
    item = make(*args)
    if isinstance(item, type) and not is_known:
        _RECEIVED.add(item)
        item.__qualname__ = name or item.__qualname__  # "Outer.Inner", of which `cloudpickle` keeps the last part
    main = sys.modules["__main__"]
    if name is not None and isinstance(main, MainOfRank):
        main.receive(name, item)
    return item


def _fill_class(received: type, state: tuple[Callable[[type, Any], None], Any]) -> None:
    """Fill a class that came in a message; one that was made here stays as it is, whatever others made of it."""
    set_state, content = state
    if received in _RECEIVED:
        set_state(received, content)
