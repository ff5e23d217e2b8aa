"""Activity: how many tasks are awake, and when none is, which a manual clock waits for before it moves."""

import anyio


class Activity:
    """Counts awake tasks. A task that only waits for another one does not count."""

    def __init__(self) -> None:
        self._awake = 0
        self._quiet: anyio.Event | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is awake."""
        return not self._awake

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


class Latch:
    """An event that most often nobody waits for: until somebody does it is a flag, which costs a tenth."""

    def __init__(self) -> None:
        self._is_set = False
        self._event: anyio.Event | None = None

    def set(self) -> None:
        """It has happened."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait until it has happened."""
        if self._event is None:
            self._event = anyio.Event()
            if self._is_set:
                self._event.set()
        await self._event.wait()


class Mailbox:
    """A bell for one waiting task, which counts as awake from the ring on, not only once it runs."""

    def __init__(self, activity: Activity) -> None:
        self.rung: bool = False
        """Whether it rang since the last `clear`."""
        self._activity = activity
        self._bell: anyio.Event | None = None

    def ring(self) -> None:
        """Wake the waiter, now or when it waits next."""
        self.rung = True
        bell, self._bell = self._bell, None
        if bell is not None:
            self._activity.enter()
            bell.set()

    def clear(self) -> None:
        """Forget earlier rings: what they told of is about to be looked at."""
        self.rung = False

    async def wait(self) -> None:
        """Wait for a ring since the last `clear`."""
        if self.rung:
            return
        bell = self._bell = anyio.Event()
        self._activity.leave()
        try:
            await bell.wait()
        finally:
            if self._bell is bell:  # cancelled before any ring
                self._bell = None
                self._activity.enter()
