"""The pages of a list: each names the next one by a token, until the last. An answer that never ends is an error."""

from __future__ import annotations

MOST_PAGES = 5000  # of 200 to 1,000 objects: ten times the Pods of the largest cluster that Kubernetes supports


class EndlessError(Exception):
    """The list has no end; says how that was seen."""


class Pages:
    """The tokens of one list, in the order in which they come."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tokens: set[int] = set()  # their hashes: a token may be long

    def follow(self, token: str) -> str:
        """The token again, if the list may go on with it. Raises EndlessError."""
        known = len(self._tokens)
        self._tokens.add(hash(token))
        if len(self._tokens) == known:
            raise EndlessError(
                f"the list {self._path} has no end: page {known + 1} names a page as the next that was read already"
            )
        if known >= MOST_PAGES:
            raise EndlessError(f"the list {self._path} has no end: {MOST_PAGES:,} pages were read, and there are more")
        return token
