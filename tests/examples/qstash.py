"""What QStash sends to a callback, signed with PyJWT, and what others might send in its name."""

import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import TypeAlias

import jwt
import jwt.utils

from a2core import AppendTask, DrainTask, Json, Message, Outage, Task, encode_message, parse_message

URL = "https://app.example.com/api/a2/scheduler"
CURRENT_KEY = "sig_" + "c" * 60
NEXT_KEY = "sig_" + "n" * 60
ENVIRONMENT = {
    "A2_URL": URL,
    "QSTASH_TOKEN": "s3cret",
    "QSTASH_CURRENT_SIGNING_KEY": CURRENT_KEY,
    "QSTASH_NEXT_SIGNING_KEY": NEXT_KEY,
}
DUE_MS = 1_700_000_000_000


def append_task(*events: Json, contract: str = "orders") -> AppendTask:
    return AppendTask("t-1", contract, "s-1", DUE_MS, events or (event("e-1"),))


def drain_task() -> DrainTask:
    return DrainTask("orders", "s-1", DUE_MS)


def event(id_: str) -> Json:
    return {"id": id_, "type": "placed", "payload": {"sku": "thé"}}


def body_of(task: Task) -> bytes:
    return encode_message(Message(task)).encode()


def outage_of(body: str) -> tuple[Task, Outage]:
    """The task that a published body carries, and its place in the lineage of an outage."""
    message = parse_message(body.encode())
    assert message is not None
    assert isinstance(message.private, Outage)
    return message.task, message.private


def sign(body: bytes, key: str | None = CURRENT_KEY, algorithm: str = "HS256", /, **changes: object) -> str:
    """A token as QStash's, with some claims changed; None leaves one out."""
    now_s = int(time.time())
    claims = {"iss": "Upstash", "sub": URL, "exp": now_s + 300, "nbf": 0, "iat": now_s, "jti": "jwt_1"}
    claims |= {"body": urlsafe_b64encode(sha256(body).digest()).decode()} | changes
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm)


def sign_with_an_empty_key(body: bytes) -> str:
    signed, _, _ = sign(body).rpartition(".")
    return f"{signed}.{jwt.utils.base64url_encode(hmac.digest(b'', signed.encode(), 'sha256')).decode()}"


Signer: TypeAlias = Callable[[bytes], str]

GENUINE: dict[str, Signer] = {
    "as QStash signs": sign,
    "with the next key": lambda body: sign(body, NEXT_KEY),
    "with a hash that is not padded": lambda body: sign(
        body, body=urlsafe_b64encode(sha256(body).digest()).decode().rstrip("=")
    ),
    "by a clock that runs ahead": lambda body: sign(body, iat=time.time() + 3_600),
}
FORGED: dict[str, Signer] = {
    "no token": lambda _: "signature",
    "no JSON": lambda _: "a.b.c",
    "a header too deep to read": lambda _: urlsafe_b64encode(b"[" * 30_000).decode() + ".e30.c",
    "another key": lambda body: sign(body, "sig_" + "x" * 60),
    "an empty key": sign_with_an_empty_key,
    "another body": lambda _: sign(b"another"),
    "no hash": lambda body: sign(body, body=None),
    "a hash that is no text": lambda body: sign(body, body=1),
    "another algorithm": lambda body: sign(body, CURRENT_KEY, "HS512"),
    "no algorithm": lambda body: sign(body, None, "none"),
    "another URL": lambda body: sign(body, sub="https://app.example.com/"),
    "no URL": lambda body: sign(body, sub=None),
    "another issuer": lambda body: sign(body, iss="upstash"),
    "no issuer": lambda body: sign(body, iss=None),
    "expired": lambda body: sign(body, exp=1),
    "no expiry": lambda body: sign(body, exp=None),
    "not yet valid": lambda body: sign(body, nbf=time.time() + 3_600),
    "no beginning": lambda body: sign(body, nbf=None),
}
