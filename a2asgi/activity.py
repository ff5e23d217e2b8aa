"""Activity: how many tasks are awake, and when none is, which a manual clock waits for before it moves."""

import anyio


class Activity:
    """Counts awake tasks. A task that only waits for another one does not count."""

    def __init__(self) -> None:
        self._awake = 0
        self._quiet: anyio.Event | None = None

    def enter(self) -> None:
        """One more is awake."""
        self._awake += 1

    def leave(self) -> None:
        """One less is awake."""
        self._awake -= 1
        if self._awake == 0 and self._quiet is not None:
            self._quiet.set()
            self._quiet = None

    async def quiet(self) -> None:
        """Wait until nothing is awake."""
        while self._awake:
            if self._quiet is None:
                self._quiet = anyio.Event()
            await self._quiet.wait()


class Mailbox:
    """A bell for one waiting task, which counts as awake from the ring on, not only once it runs."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._bell = anyio.Event()
        self._waiting = False

    @property
    def rung(self) -> bool:
        """Whether it rang since the last `clear`."""
        return self._bell.is_set()

    def ring(self) -> None:
        """Wake the waiter, now or when it waits next."""
        if self._waiting:
            self._waiting = False
            self._activity.enter()
        self._bell.set()

    def clear(self) -> None:
        """Forget earlier rings: what they told of is about to be looked at."""
        self._bell = anyio.Event()

    async def wait(self) -> None:
        """Wait for a ring since the last `clear`."""
        if self._bell.is_set():
            return
        self._waiting = True
        self._activity.leave()
        try:
            await self._bell.wait()
        finally:
            if self._waiting:  # cancelled before any ring
                self._waiting = False
                self._activity.enter()
