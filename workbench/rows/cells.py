"""The declared name of a study's function, which keeps its finished cells valid when the function moves."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["declared_name", "named"]

NAME = re.compile(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*")
Function = TypeVar("Function", bound=Callable[..., Any])


def named(name: str) -> Callable[[Function], Function]:
    """Declare a function's name, such as "flextp/train_vit"; renaming it would orphan the cells recorded under it."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"name is {name!r}; it must read technique/name, in lower case letters, digits and underscores"
        )

    def declare(function: Function) -> Function:
        vars(function)["declared_name"] = name
        return function

    return declare


def declared_name(function: Callable[..., Any]) -> str:
    """Return the declared name of a function; its qualified name where none is declared."""
    return getattr(function, "declared_name", f"{function.__module__}.{function.__qualname__}")
