"""AWS Lambda as a host of the matrix: events of an HTTP API, to a process that does nothing between two of them."""

import json
import os
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx

from tests.hosts.servers import ROOT, TROUBLE


@dataclass
class LambdaHost:
    """One app as a Lambda function, on one SQLite file, through any number of starts. Its last call's time is kept."""

    app: str
    folder: Path
    took_s: float = 0.0
    _process: subprocess.Popen[str] | None = None

    CANNOT: ClassVar[Mapping[str, str]] = {
        "stream": "Mangum answers in one piece",
        "disconnect": "a function has no connection",
    }
    """The checks that a function has no part in, and why."""

    REMARK: ClassVar[str] = "timer and restart: by a later call"

    @property
    def trouble(self) -> str | None:
        """The first line of its log that tells of trouble, and what follows it."""
        log = (self.folder / "log").read_text()
        found = TROUBLE.search(log)
        return None if found is None else log[found.start() :][:2_000]

    def start(self) -> None:
        """A new process; nothing runs before its first call."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.lambda_function", self.app],
                cwd=ROOT,
                env=os.environ | {"HOSTS_DB": str(self.folder / "shop.db"), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def call(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """One event, as an HTTP API sends it; headers with underscores for hyphens."""
        http = {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "x"}
        event = {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": path,
            "rawQueryString": "",
            "headers": {"host": "x"} | {name.replace("_", "-"): value for name, value in headers.items()},
            "requestContext": {"stage": "$default", "http": http},
            "body": b64encode(content).decode(),
            "isBase64Encoded": True,
        }
        began = time.monotonic()
        answer = self._handle(event)
        self.took_s = time.monotonic() - began
        body = answer["body"].encode()
        return httpx.Response(
            answer["statusCode"],
            headers=answer["headers"],
            content=b64decode(body) if answer["isBase64Encoded"] else body,
        )

    def _handle(self, event: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(event)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self.folder / "log").read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self, within_s: float) -> float:
        """A function is ended between two calls: the time that counts is its last call's. Raises TimeoutError."""
        if self.took_s > within_s:
            raise TimeoutError(f"the call took {self.took_s:.1f} s")
        self.kill()
        return self.took_s

    def kill(self) -> None:
        """As Lambda ends it: without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
