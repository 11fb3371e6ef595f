"""Stand-ins, in a browser, for packages that do not exist there: planners and puzzles import them, and do not use them.

Python in a browser (Pyodide, as JupyterLite has it) has neither torch nor numba, and starts no processes. What needs
torch or ranks says so when it is called; what numba would compile runs as Python.
"""

import sys
from abc import ABCMeta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["ABSENT", "NotInBrowser", "install"]

ABSENT = ("numba", "psutil", "pyroute2", "safetensors", "torch", "zmq")  # those of them that are there are left alone


class NotInBrowser(RuntimeError):
    """What was called needs a package that a browser does not have."""


class _Name(ABCMeta):
    """A class for each name in an absent package: a base class or annotation, a decorator that changes nothing."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Name(name, (), {"__module__": f"{cls.__module__}.{cls.__name__}"})
        setattr(cls, name, made)
        return made

    def __getitem__(cls, item: object) -> type:
        return cls  # an annotation

    def __call__(cls, *args: object, **kwargs: object) -> object:
        absent = next(base for base in cls.__mro__[::-1] if isinstance(base, _Name))
        if cls is absent and len(args) == 1 and callable(args[0]):  # @njit
            return args[0]
        if cls is absent and not args:  # @njit(cache=True)
            return lambda function: function
        package = absent.__module__.partition(".")[0]
        raise NotInBrowser(f"{cls.__name__} needs {package}, which a browser does not have: open this in JupyterLab")


class _Finder(MetaPathFinder, Loader):
    """Finds absent packages, and whatever is imported from them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Name(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


def install() -> None:
    """Put the stand-ins after all that is really there."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
