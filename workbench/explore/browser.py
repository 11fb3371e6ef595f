"""Stand-ins for packages that do not exist in a browser: planners and puzzles import them without using them.

Python in a browser (Pyodide in JupyterLite) has neither torch nor numba, and starts no processes. Calls that need torch
or ranks raise NotInBrowser; functions that numba would compile run as Python.
"""

import sys
from abc import ABCMeta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["ABSENT", "NotInBrowser", "install"]

ABSENT = ("numba", "psutil", "pyroute2", "safetensors", "sklearn", "torch", "zmq")  # a package that is there is used


class NotInBrowser(RuntimeError):
    """The call needs a package that a browser does not have."""


class _Name(ABCMeta):
    """A class for each name in an absent package; it serves as base class, annotation or decorator without effect."""

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
    """Finds absent packages and everything below them."""

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
    """Install the stand-ins after all real packages."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
