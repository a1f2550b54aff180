"""Any JSON value, for properties of what reads JSON from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

texts = st.text()
atoms: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats() | texts


def any_json(
    of: st.SearchStrategy[Any] = atoms,
    keys: st.SearchStrategy[Any] | Sequence[str] = texts,
    *,
    most: int | None = 3,
    leaves: int = 8,
) -> st.SearchStrategy[Any]:
    """A value of any shape. `of`: what it is made of; `keys`: of its objects, words or a strategy; `most`: entries of a
    list or an object."""
    names = st.sampled_from(list(keys)) if isinstance(keys, Sequence) else keys
    return st.recursive(
        of,
        lambda inner: st.lists(inner, max_size=most) | st.dictionaries(names, inner, max_size=most),
        max_leaves=leaves,
    )


def places_in(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value in a JSON value."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, value in below for found in places_in(value, (*path, key)))]
