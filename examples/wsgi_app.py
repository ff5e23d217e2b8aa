"""Sessions in a WSGI app that QStash wakes: `a2core` asks what comes next, and plain blocking calls answer."""

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from hmac import compare_digest
from wsgiref.types import StartResponse, WSGIEnvironment

import jwt.utils

import a2core

HEADERS = ("HTTP_UPSTASH_SIGNATURE", "HTTP_UPSTASH_REGION", "CONTENT_LENGTH")
JWT = jwt.PyJWT({"require": ["iss", "sub", "exp", "nbf", "body"], "verify_iat": False})
TAKE = "update log set done = 1 where rowid = (select min(rowid) from log where session = ? and not done) returning *"


class Delivery:
    """One request's answers to the questions of `a2core.Ports`."""

    def __init__(self, environ: WSGIEnvironment, publish: Callable[[a2core.PublishRequest], bool]) -> None:
        self.environ, self.publish = environ, publish

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def read_body(self, max_bytes: int) -> bytes | None:
        body, length = a2core.BoundedBody(max_bytes), self.environ.get("CONTENT_LENGTH", "")
        end = int(length) if length.isdecimal() else (max_bytes + 1) * ("wsgi.input_terminated" in self.environ)
        with suppress(a2core.TooLarge):
            while chunk := self.environ["wsgi.input"].read(min(end - body.size, 65_536)):  # more may never come
                body.feed(chunk)
            return body.read()
        return None

    def verify(self, step: a2core.Verify) -> bool:
        url, digest = step.context.rules.publish.callback.url, jwt.utils.base64url_encode(sha256(step.body).digest())
        for key in (os.environ["QSTASH_CURRENT_SIGNING_KEY"], os.environ["QSTASH_NEXT_SIGNING_KEY"]):
            with suppress(Exception):  # whatever a token holds, it is genuine or it is not
                claims = JWT.decode(step.signature, key, algorithms=["HS256"], issuer="Upstash", subject=url)
                return compare_digest(claims["body"].rstrip("=").encode(), digest)
        return False

    def append(self, step: a2core.Append | a2core.Drain) -> a2core.Ended:
        session = step.task.session_id
        events = a2core.parse_events(step.task) if isinstance(step, a2core.Append) else ()
        try:
            with closing(sqlite3.connect(os.environ["A2_DB"])) as log:
                log.execute("create table if not exists log (id, type, payload, session, done, unique (session, id))")
                rows = [(event.id, event.type, event.payload, session) for event in events or ()]
                log.executemany("insert or ignore into log values (?, ?, ?, ?, 0)", rows)
                log.commit()
                while row := log.execute(TAKE, [session]).fetchone():
                    print(session, *row[:3])  # your handler: if it fails, its event stays pending
                    log.commit()
        except Exception as error:
            logging.getLogger(__name__).exception("session %s", session)
            return a2core.Ended.UNAVAILABLE if isinstance(error, sqlite3.OperationalError) else a2core.Ended.FAILED
        return a2core.Ended.FAILED if events is None else a2core.Ended.DONE

    drain = append

    def join_arm(self) -> bool:
        return False  # never asked: `drain` arms no watchdog


def app(send: Callable[[a2core.PublishRequest], bool], environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
    """Answer one request; serve `partial(app, send)`, where `send` tells whether QStash has the message."""
    callback = a2core.callback(os.environ.get("A2_URL"), os.environ)
    rules = a2core.DeliveryRules(a2core.PublishRules(callback), frozenset({"orders"}))
    step = a2core.begin_delivery(rules, a2core.Head(environ["REQUEST_METHOD"], *map(environ.get, HEADERS)))
    answer = a2core.ANSWERS[a2core.drive(step, Delivery(environ, send)).reason]
    never = [("upstash-nonretryable-error", "true")] if answer.nonretryable else []
    start(f"{answer.status} {answer.text}", [("content-type", "text/plain"), *answer.headers, *never])
    return [answer.text.encode()]
