"""Renewal: a thread of its own keeps held claims alive, also while a handler blocks the event loop."""

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, Thread, get_ident
from types import CodeType

from a2asgi.clock import Clock
from a2asgi.ports import SessionKey, Store
from a2asgi.threads import Loop
from a2core import DrainTimings, Needs, Renewed, decide_renew

log: logging.Logger = logging.getLogger("a2asgi.renewal")


@dataclass(eq=False, slots=True)
class Held:
    """A claim to keep alive, until `until_ms` of the store's clock at most.

    `lose` and `beat` are called on the loop: the claim is lost; it was renewed (told to one holder of a session).
    `good_until_ms` is how long it is known to be ours.
    """

    key: SessionKey
    seq: int
    attempt: int
    handler: str
    code: CodeType | None
    until_ms: int | None
    lose: Callable[[], None]
    beat: Callable[[], object]
    good_until_ms: int = 0


class _LoopWatch:
    """Knows whether a loop has come round since the last beat."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.thread = get_ident()
        self._answered = True

    def unanswered(self) -> bool:
        """Ask the loop to come round; True if it has not since it was asked last."""
        blocked = not self._answered
        self._answered = False
        self.loop.call_soon(self._answer)
        return blocked

    def running(self, held: list[Held]) -> str:
        """The handler that the loop's thread is in, read off its stack; all of them where that does not tell."""
        frame = sys._current_frames().get(self.thread)  # noqa: SLF001 - the documented way to another thread's stack
        codes = {one.code: one.handler for one in held if one.code is not None}
        while frame is not None:
            if frame.f_code in codes:
                return codes[frame.f_code]
            frame = frame.f_back
        return " or ".join(sorted({one.handler for one in held}))

    def _answer(self) -> None:
        self._answered = True


class Renewer:
    """Renews what is held, every heartbeat. Its thread lives while something is held.

    With a `clock` there is no thread: whoever owns that clock calls `beat` on the loop. Without, it counts by one that
    nobody sets: were the time of day put forward, one failed renewal would look like many.
    """

    def __init__(self, store: Store, timings: DrainTimings, clock: Clock | None = None) -> None:
        self._store = store
        self._timings = timings
        self._threaded = clock is None
        self._now_ms = _steady_ms if clock is None else clock.now_ms
        self._lock = Lock()
        self._held: dict[Held, _LoopWatch] = {}
        self._thread: Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self._held

    def hold(self, held: Held) -> None:
        """Keep this claim alive from now on. Call it on the loop that `held` is to be told on."""
        held.good_until_ms = self._now_ms() + self._timings.ttl_ms
        with self._lock:
            watch = next((watch for watch in self._held.values() if watch.thread == get_ident()), None)
            self._held[held] = watch or _LoopWatch()
            if self._threaded and self._thread is None:
                self._thread = Thread(target=self._work, name="a2-renewal", daemon=True)
                self._thread.start()

    def drop(self, held: Held) -> None:
        """Its attempt is over."""
        with self._lock:
            self._held.pop(held, None)

    def beat(self) -> None:
        """Renew everything that is held, and tell each holder whether it still is one."""
        with self._lock:
            watches = dict(self._held)
        for watch in set(watches.values()):
            if self._threaded and watch.unanswered():
                log.warning(
                    "handler %s has blocked the event loop for a heartbeat (%d ms). Its claims are renewed, but "
                    "nothing else runs: make it a plain function, which runs on a thread, or await what it waits for",
                    watch.running([held for held, its in watches.items() if its is watch]),
                    self._timings.heartbeat_ms,
                )
        sessions: defaultdict[SessionKey, dict[int, Held]] = defaultdict(dict)
        for held in sorted(watches, key=lambda held: held.attempt):
            older = sessions[held.key].pop(held.seq, None)
            if older is not None:  # this process claimed it again: a seq is renewed for its last attempt only
                self._tell(watches[older], older.lose)
            sessions[held.key][held.seq] = held
        for key, by_seq in sessions.items():
            self._renew(key, by_seq, watches)

    def _renew(self, key: SessionKey, by_seq: dict[int, Held], watches: dict[Held, _LoopWatch]) -> None:
        # one session's claims were made under one deadline, or none
        until_ms = min((held.until_ms for held in by_seq.values() if held.until_ms is not None), default=None)
        attempts = {seq: held.attempt for seq, held in by_seq.items()}
        now_ms = self._now_ms()
        try:
            renewed: Renewed = self._store.transact_blocking(
                key,
                Needs(seqs=tuple(by_seq), heads=True),
                lambda snapshot, now_ms: decide_renew(
                    snapshot, now_ms, held=attempts, expires_at_ms=capped(now_ms + self._timings.ttl_ms, until_ms)
                ),
            )
        except Exception as error:  # noqa: BLE001 - whatever it was, the other sessions' claims must be renewed
            log.warning("claims of session %s were not renewed, next try in a heartbeat: %r", key, error)
            for held in by_seq.values():
                if held.good_until_ms + self._timings.heartbeat_ms <= now_ms:  # long enough for another to hold it
                    self._tell(watches[held], held.lose)
            return
        for seq, held in by_seq.items():
            if seq in renewed.lost:
                self._tell(watches[held], held.lose)
            else:
                held.good_until_ms = now_ms + self._timings.ttl_ms
        for held in [held for seq, held in by_seq.items() if seq in renewed.kept][:1]:
            self._tell(watches[held], held.beat)

    def _tell(self, watch: _LoopWatch, function: Callable[[], object]) -> None:
        """Call it on the holder's loop, which is this very thread where the renewer has none of its own."""
        if self._threaded:
            watch.loop.call_soon(function)
        else:
            function()

    def _work(self) -> None:
        while True:
            time.sleep(self._timings.heartbeat_ms / 1_000)
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
            self.beat()


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def capped(at_ms: int, limit_ms: int | None) -> int:
    """The instant, or the limit if that comes first."""
    return at_ms if limit_ms is None else min(at_ms, limit_ms)
