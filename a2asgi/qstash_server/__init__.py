"""A QStash-compatible server for development, for tests, and for self-hosting where no provider is wanted.

It is built from public documentation and the behaviour of the official clients alone. Where official sources
conflict, it accepts both forms. It follows no redirects, does not resolve a destination before it delivers, keeps
flow-control settings without enforcing them, and has no URL groups. Install it with `a2[qstash-server]`, and start it
with `a2 qstash` or `python -m a2asgi.qstash_server`.
"""

from a2asgi.qstash_server.credentials import Credentials
from a2asgi.qstash_server.server import QStashServer, Settings
from a2asgi.qstash_server.signing import SigningKeys

__all__ = ["Credentials", "QStashServer", "Settings", "SigningKeys"]
