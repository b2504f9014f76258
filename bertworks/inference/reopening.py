"""Pickles of objects that were opened from files: what opens them again, not what they read.

- `Reopened`: the base class of such objects
"""

import copy
from collections.abc import Callable, Hashable
from functools import lru_cache
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, Self

# objects, and models, that a process keeps open: each task that it gets brings a pickle of the same
NUM_KEPT_OPEN = 2
_OPENING = RLock()


class Opening(NamedTuple):
    """A call that opens an object: a function of a module, and its few short arguments."""

    function: Callable[..., "Reopened"]
    arguments: tuple[Hashable, ...]


class Reopened:
    """An object whose pickle holds the call that opens it again, in a few hundred bytes.

    The object in another process is opened when it is first used. An error, such as a folder that
    has changed, is then raised where the object is used: `multiprocessing.Pool` would wait for ever
    for a process that cannot read its task. Copies by the module `copy` do not open anything.

    A subclass has a method `_opening_call`, and calls `_is_open` at the end of its constructor.
    Attributes that are assigned later, such as those of a subclass of it, are part of the pickle.
    """

    def _opening_call(self) -> Opening:
        """Return the call that opens an equal object."""
        raise NotImplementedError

    def _is_open(self) -> None:
        self._opened_attributes = frozenset(vars(self))

    def __getstate__(self) -> dict[str, Any]:
        attributes = vars(self)
        if "_closed" in attributes:
            return dict(attributes)
        restored = {*self._opened_attributes, "_opened_attributes"}
        state: dict[str, Any] = {"_closed": self._opening_call()}
        for name, value in attributes.items():
            is_cached_property = hasattr(type(self), name)
            if name not in restored and not is_cached_property:
                state[name] = value
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    if not TYPE_CHECKING:  # mypy would accept any name

        def __getattr__(self, name: str) -> Any:
            """Open the object if it is not open yet.

            Python looks here for attributes that it lacks.
            """
            attributes = vars(self)
            with _OPENING:
                is_closed = "_closed" in attributes
                # special methods are methods of the class
                if is_closed and not name.startswith("__"):
                    opened = _opened_object(attributes["_closed"])
                    attributes.update(vars(opened) | attributes)
                    del attributes["_closed"]
                    return getattr(self, name)
            if name in attributes:  # another thread has opened the object
                return attributes[name]
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = object.__new__(type(self))
        memo[id(self)] = other
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other


@lru_cache(maxsize=NUM_KEPT_OPEN)
def _opened_object(opening: Opening) -> Reopened:
    return opening.function(*opening.arguments)
