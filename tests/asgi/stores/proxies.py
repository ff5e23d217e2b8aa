"""What may stand between a store and its Postgres: a pooler in transaction mode, and a wire that falls silent."""

import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Queue
from threading import Event, Lock, Thread
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


class Proxy(ABC):
    """Accepts connections for a server, and serves each on a thread of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self._lock = Lock()
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}"))
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # a listener that another thread waits on is not freed by close alone
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                end(one)

    @abstractmethod
    def serve(self, client: socket.socket) -> None:
        """Be between this client and the server until one of them ends it."""

    def connect(self) -> socket.socket:
        return self._kept(socket.create_connection(self._server))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(self._kept(client),), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            self.serve(client)

    def _kept(self, one: socket.socket) -> socket.socket:
        with self._lock:
            self._sockets.add(one)
        return one


class Pooler(Proxy):
    """Gives each transaction a session of the server, the one that has rested longest, stripped of all its state.

    It knows the simple protocol alone, so that whatever is prepared, or kept in a session, is found out.
    """

    def __init__(self, url: str, *, sessions: int) -> None:
        self._most = sessions
        self._pools: dict[bytes, Pool] = {}
        self._pools_lock = Lock()
        self.transactions = 0
        super().__init__(url)

    def serve(self, client: socket.socket) -> None:
        startup = self._startup(client)
        with self._pools_lock:
            pool = self._pools.get(startup) or Pool([self._session(startup) for _ in range(self._most)])
            self._pools[startup] = pool
            pool.clients += 1
        try:
            client.sendall(pool.greeting)
            while (message := receive(client))[:1] != b"X":
                self._transaction(client, message, pool)
        finally:
            with self._pools_lock:
                pool.clients -= 1
                if not pool.clients:
                    del self._pools[startup]
                    for _ in range(self._most):
                        end(pool.resting.get())

    def _transaction(self, client: socket.socket, message: bytes, pool: "Pool") -> None:
        server = pool.resting.get()
        status = b"T"
        try:
            while True:
                assert message[:1] == b"Q", f"not the simple protocol: {message[:1]!r}"
                server.sendall(message)
                status = forward(server, client)
                if status == b"I":
                    return
                message = receive(client)
        finally:
            for command in [b"ROLLBACK"] * (status != b"I") + [b"DISCARD ALL"]:
                server.sendall(b"Q" + struct.pack("!i", len(command) + 5) + command + b"\0")
                forward(server, None)
            pool.resting.put(server)
            self.transactions += 1

    def _startup(self, client: socket.socket) -> bytes:
        while True:
            size = read_exactly(client, 4)
            body = read_exactly(client, struct.unpack("!i", size)[0] - 4)
            if struct.unpack("!i", body[:4])[0] not in {SSL_REQUEST, GSS_REQUEST}:
                return size + body
            client.sendall(b"N")

    def _session(self, startup: bytes) -> tuple[socket.socket, bytes]:
        server = self.connect()
        server.sendall(startup)
        greeting = message = receive(server)
        while message[:1] != b"Z":
            message = receive(server)
            greeting += message
        return server, greeting


class Pool:
    """Sessions of the server that were begun alike, and how it greeted them."""

    def __init__(self, sessions: list[tuple[socket.socket, bytes]]) -> None:
        self.clients = 0
        self.greeting = sessions[0][1]
        self.resting: Queue[socket.socket] = Queue()
        for server, _ in sessions:
            self.resting.put(server)


class Wire(Proxy):
    """Carries bytes both ways, until it is told to fall silent: then it keeps them, and tells nobody."""

    def __init__(self, url: str) -> None:
        self._asks, self._answers = Event(), Event()
        self.speak_again()
        super().__init__(url)

    def fall_silent(self, *, answers_only: bool = False) -> None:
        if not answers_only:
            self._asks.clear()
        self._answers.clear()

    def speak_again(self) -> None:
        self._asks.set()
        self._answers.set()

    def serve(self, client: socket.socket) -> None:
        self._asks.wait()
        with self.connect() as server:
            back = Thread(target=self._carry, args=(server, client, self._answers), daemon=True)
            back.start()
            self._carry(client, server, self._asks)
            back.join()

    def _carry(self, source: socket.socket, target: socket.socket, flows: Event) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                flows.wait()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def pooler(url: str, *, sessions: int) -> Iterator[Pooler]:
    made = Pooler(url, sessions=sessions)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    try:
        yield made
    finally:
        made.speak_again()
        made.close()


def forward(server: socket.socket, client: socket.socket | None) -> bytes:
    """Pass on what a server says until it is ready again, and return the status of its transaction."""
    answer = b""
    while True:
        message = receive(server)
        answer += message
        if message[:1] == b"Z":
            if client is not None:
                client.sendall(answer)
            return message[-1:]


def receive(source: socket.socket) -> bytes:
    """The next message, which begins with its kind."""
    head = read_exactly(source, 5)
    return head + read_exactly(source, struct.unpack("!i", head[1:])[0] - 4)


def end(one: socket.socket) -> None:
    """Close a socket that another thread may be waiting on."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def read_exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
