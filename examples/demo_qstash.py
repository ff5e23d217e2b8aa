"""The same demonstration behind a QStash server of our own, which carries timers and wake-ups over signed HTTP.

    python -m examples.demo_qstash

The app keeps no scheduler: what its handlers wait for, and what a killed process leaves behind, is woken from outside.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

from examples.demo import ROOT, Server, main


class BehindQStash(Server):
    """The order app, and the server that calls it back."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, provider_port = _free_port(), _free_port()
        self.slack_s = 2.5  # a provider counts in whole seconds
        self.environment |= {
            "ORDERS_URL": f"http://127.0.0.1:{self.port}/api/a2/scheduler",
            "QSTASH_URL": f"http://127.0.0.1:{provider_port}",
            "QSTASH_DEV": "1",  # its public credentials serve in development alone
        }
        command = [sys.executable, "-m", "a2asgi.qstash_server", "--port", str(provider_port)]
        with (folder / "qstash.log").open("wb") as log:
            self._provider = subprocess.Popen(  # noqa: S603 - the command is our own
                [*command, "--db", str(folder / "qstash.db")],
                cwd=ROOT,
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        """Leave nothing running."""
        super().end()
        self._provider.kill()
        self._provider.wait(timeout=5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main(BehindQStash))
