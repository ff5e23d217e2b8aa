"""Limits: how many handlers of one contract this process runs at a time."""

from collections.abc import Callable


class Limit:
    """Places to run in, of which there are `most`; None for any number."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._taken = 0
        self._waiting: list[Callable[[], object]] = []

    @property
    def is_contended(self) -> bool:
        """Whether someone waits for a place."""
        return bool(self._waiting)

    def take(self, wanted: int) -> int:
        """Take up to `wanted` places, and say how many."""
        granted = wanted if self._most is None else min(wanted, self._most - self._taken)
        self._taken += granted
        return granted

    def give_back(self, places: int) -> None:
        """These are free again: whoever waits is told, and tries for itself."""
        self._taken -= places
        if places:
            waiting, self._waiting = self._waiting, []
            for ring in waiting:
                ring()

    def when_free(self, ring: Callable[[], object]) -> None:
        """Call this once, when a place becomes free."""
        self._waiting.append(ring)
