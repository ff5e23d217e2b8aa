"""Claim passes: the decision of each in the order in which the store makes them, and what is written with the first."""

from collections.abc import Iterator

from a2asgi.contract import Definition
from a2asgi.ports import Answer, Decide
from a2asgi.renewal import capped
from a2asgi.runtime import Runtime
from a2asgi.threads import Promise
from a2core import Claimed, Needs, Plan, Snapshot, decide_claim


class Pass:
    """The decision of one claim pass. Once made, `order` is its place among the drain's, as the store has made them."""

    def __init__(
        self, runtime: Runtime, definition: Definition, orders: Iterator[int], limit: int, until_ms: int | None
    ) -> None:
        self.order: int = 0
        self.until_ms: int | None = until_ms
        self._runtime = runtime
        self._definition = definition
        self._orders = orders
        self._limit = limit

    def __call__(self, snapshot: Snapshot, now_ms: int) -> Plan[Claimed]:
        """Decide to claim as much as the limit lets; nothing, once the platform's time is up."""
        self.order = next(self._orders)
        ends_at_ms = self._runtime.by_store(self.until_ms)
        is_over = ends_at_ms is not None and ends_at_ms <= now_ms
        return decide_claim(
            snapshot,
            now_ms,
            holder=self._runtime.holder,
            limit=0 if is_over else self._limit,
            roster=self._definition.roster(),
            expires_at_ms=capped(now_ms + self._runtime.timings.ttl_ms, ends_at_ms),
        )


class Opening(Promise[Answer]):
    """What a drain writes in the transaction of its first pass. Whoever asked for it waits for the answer."""

    def __init__(self, needs: Needs, decide: Decide[Answer]) -> None:
        super().__init__()
        self.needs: Needs = needs
        self.decide: Decide[Answer] = decide
