"""The lifespan conversation of host, middleware and app: A2 around the app, whether the app has a lifespan or not."""

import logging

from a2asgi.asgi import ASGIApp, Message, Receive, Scope, Send
from a2asgi.serving import Serving

__all__ = ["ASGIApp", "LifespanTalk", "Message", "Receive", "Scope", "Send"]

log: logging.Logger = logging.getLogger("a2asgi.lifespan")


class LifespanTalk:
    """One conversation. The host hears of a stage once, when A2 and the app are both through it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.started: bool = False
        self._receive = receive
        self._send = send
        self._serving: Serving | None = None
        self._heard: set[str] = set()
        self._answered: set[str] = set()
        self._last: Message = {"type": "lifespan.shutdown.complete"}

    async def run(self, app: ASGIApp, scope: Scope, serving: Serving) -> None:
        """Both lifespans, up to the point where only the host's last answer is due.

        Claiming begins once the app has started, and ends before the app is told to shut down.
        """
        self._serving = serving
        try:
            await app(scope, self._app_receive, self._app_send)
        except Exception as error:
            if self._answered:
                raise
            # ASGI: an app that raises before it answers has no lifespan, and is served all the same
            log.info("the wrapped app has no lifespan: %r", error)
        if not self._answered:
            if "lifespan.startup" not in self._heard:
                await self._hear()
            await self._app_send({"type": "lifespan.startup.complete"})
        if self.started and "lifespan.shutdown" not in self._heard:
            await self._app_receive()

    async def finish(self) -> None:
        """All is closed: tell the host, unless it was told that the start failed."""
        if self.started:
            await self._send(self._last)

    async def fail(self, reason: str) -> None:
        """Tell the host that A2 did not start, or did not stop; the app may have told it the former."""
        if not self._heard:
            await self._hear()
        if self.started or not self._answered:
            stage = "shutdown" if self.started else "startup"
            await self._send({"type": f"lifespan.{stage}.failed", "message": reason})

    async def _app_receive(self) -> Message:
        message = await self._hear()
        if message["type"] == "lifespan.shutdown" and self._serving is not None:
            await self._serving.stop()
        return message

    async def _app_send(self, message: Message) -> None:
        self._answered.add(message["type"])
        if message["type"].startswith("lifespan.shutdown"):
            self._last = message  # said once the store is closed too
            return
        if message["type"] == "lifespan.startup.complete" and self._serving is not None:
            self._serving.begin()
            self.started = True
        await self._send(message)

    async def _hear(self) -> Message:
        message = await self._receive()
        self._heard.add(message["type"])
        return message
