"""Transactions: an app's own rows and its events, committed together or not at all."""

from types import TracebackType
from typing import Any, Self

from anyio import CancelScope

from a2asgi.engine import Engine, Receipt
from a2asgi.session import Ready, Session


class Transaction:
    """`async with a2.transaction(db) as tx`: commits at the end, then has what was appended handled.

    An error rolls back, and neither rows nor events are there.
    """

    def __init__(self, ready: Ready, connection: Any) -> None:
        self._ready = ready
        self._connection = connection
        self._receipts: list[Receipt] = []

    def __repr__(self) -> str:
        return f"Transaction({len(self._receipts)} appends)"

    async def __aenter__(self) -> Self:
        engine: Engine = await self._ready()
        await engine.joining_store().begin(self._connection)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with CancelScope(shield=True):
            await (self._connection.commit() if kind is None else self._connection.rollback())
        if kind is not None:
            return
        for receipt in self._receipts:
            await receipt.committed()

    async def append(self, session: Session, *events: object, id: str | None = None) -> Receipt:  # noqa: A002 - the field's word
        """Append events to a session in this transaction. Raises as `session.append`."""
        receipt = await session.append(*events, id=id, connection=self._connection)
        self._receipts.append(receipt)
        return receipt
