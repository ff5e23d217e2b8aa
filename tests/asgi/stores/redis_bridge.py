"""A small server of Upstash's REST interface in front of a real Redis, on a socket of its own."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.asgi.stores.redis_server import RedisClient

TOKEN = "up-token-0123456789"
Answer = Callable[[], Response]


class Bridge:
    """Answers `POST /` with one command as JSON does, and `POST /pipeline` with several.

    `commands` are those that came; `instead` answers in the place of Redis, and `silent` loses what Redis answered.
    """

    def __init__(self, port: int) -> None:
        self.commands: list[str] = []
        self.instead: Answer | None = None
        self.losing = 0
        self._redis_port = port
        self._idle: list[RedisClient] = []
        self._lock = Lock()
        app = Starlette(routes=[Route("/", self._command, methods=["POST"])])
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)  # by which asyncio knows to send at once
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()  # from now on who connects waits for the server, and is not refused
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        self._thread = Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        for client in self._idle:
            client.close()

    async def _command(self, request: Request) -> Response:
        if f"Bearer {TOKEN}" != request.headers.get("authorization"):
            return JSONResponse({"error": "Unauthorized"}, 401)
        if self.instead is not None:
            return self.instead()
        words = json.loads(await request.body())
        self.commands.append(words[0])
        answer, status = await run_in_threadpool(self._ask, words)
        if self.losing:
            self.losing -= 1
            return Response("a gateway lost it", 502)
        return JSONResponse(answer, status)

    def _ask(self, words: list[str | int]) -> tuple[dict[str, Any], int]:
        with self._lock:
            client = self._idle.pop() if self._idle else None
        client = client or RedisClient(self._redis_port)
        try:
            answer: dict[str, Any] = {"result": _json(client(*words))}
        except RuntimeError as error:
            answer = {"error": str(error)}
        except OSError:
            client.close()
            return {"error": "ERR no connection to the database"}, 500
        with self._lock:
            self._idle.append(client)
        return answer, 400 if "error" in answer else 200


def _json(answer: Any) -> Any:
    if isinstance(answer, bytes):
        return answer.decode()
    return [_json(part) for part in answer] if isinstance(answer, list) else answer


@contextmanager
def bridge_process(port: int) -> Iterator[str]:
    """The URL of one in a process of its own, for those who keep it busy."""
    command = [sys.executable, "-m", "tests.asgi.stores.redis_bridge", str(port)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


if __name__ == "__main__":
    with Bridge(int(sys.argv[1])) as own:
        sys.stdout.write(f"{own.url}\n")
        sys.stdout.flush()
        sys.stdin.read()
