"""Sessions in an AWS Lambda function that QStash wakes: one `match` carries out what `a2core` asks for."""

import logging
import sqlite3
import time
from base64 import b64decode
from contextlib import closing, suppress
from hashlib import sha256
from hmac import compare_digest
from http.client import HTTPException, HTTPSConnection
from os import environ
from typing import Any

import jwt.utils

import a2core

HEADERS = ("upstash-signature", "upstash-region", "content-length")
JWT = jwt.PyJWT({"require": ["iss", "sub", "exp", "nbf", "body"], "verify_iat": False})


def is_genuine(step: a2core.Verify) -> bool:
    """Try both signing keys. Whatever a token holds, it is genuine or it is not."""
    url, digest = step.context.rules.publish.callback.url, jwt.utils.base64url_encode(sha256(step.body).digest())
    for key in (environ["QSTASH_CURRENT_SIGNING_KEY"], environ["QSTASH_NEXT_SIGNING_KEY"]):
        with suppress(Exception):
            claims = JWT.decode(step.signature, key, algorithms=["HS256"], issuer="Upstash", subject=url)
            return compare_digest(claims["body"].rstrip("=").encode(), digest)
    return False


def work(step: a2core.Append | a2core.Drain) -> a2core.Ended:
    """Append and handle in one transaction, so that a drain finds nothing pending. The log is a file on EFS."""
    events = a2core.parse_events(step.task) if isinstance(step, a2core.Append) else ()
    try:
        with closing(sqlite3.connect(environ["A2_DB"])) as log, log:
            log.execute("create table if not exists log (session, id, type, payload, unique (session, id))")
            for event in events or ():
                row = (step.task.session_id, event.id, event.type, event.payload)
                if log.execute("insert or ignore into log values (?, ?, ?, ?)", row).rowcount:
                    print(*row)  # your handler: if it fails, nothing of this delivery is in the log
    except Exception as error:
        logging.getLogger(__name__).exception("session %s", step.task.session_id)
        return a2core.Ended.UNAVAILABLE if isinstance(error, sqlite3.OperationalError) else a2core.Ended.FAILED
    return a2core.Ended.FAILED if events is None else a2core.Ended.DONE


def publish(request: a2core.PublishRequest) -> bool:
    """Tell whether QStash has the message. An answer that never came does not count."""
    call, connection = a2core.qstash_call(request), HTTPSConnection("qstash.upstash.io", timeout=10)
    with closing(connection), suppress(OSError, HTTPException):
        headers = {"authorization": f"Bearer {environ['QSTASH_TOKEN']}", **dict(call.headers)}
        connection.request(call.method, call.target, call.body, headers)
        return a2core.reply_failure(connection.getresponse().status) is None
    return False


def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
    """Answer one request to a function URL, or from an API Gateway with payload format 2.0."""
    method, text = event["requestContext"]["http"]["method"], event.get("body", "")
    body = b64decode(text) if event["isBase64Encoded"] else text.encode()
    rules = a2core.DeliveryRules(a2core.PublishRules(a2core.callback(environ["A2_URL"], {})), frozenset({"orders"}))
    step: a2core.Step = a2core.begin_delivery(rules, a2core.Head(method, *map(event["headers"].get, HEADERS)))
    while not isinstance(step, a2core.Respond):
        match step:
            case a2core.ReadBody():
                step = step.received(body if len(body) <= step.max_bytes else None)
            case a2core.Verify():
                step = step.answered(is_genuine(step), time.time_ns() // 1_000_000)
            case a2core.Append() | a2core.Drain():
                step = step.ended(work(step), time.time_ns() // 1_000_000)
            case a2core.Publish():
                step = step.confirmed(publish(step.request))
            case a2core.JoinArm():
                step = step.confirmed(accepted=False)  # never asked: `work` arms no watchdog
    answer = a2core.ANSWERS[step.reason]
    never = {"upstash-nonretryable-error": "true"} if answer.nonretryable else {}
    headers = {"content-type": "text/plain", **dict(answer.headers), **never}
    return {"statusCode": answer.status, "headers": headers, "body": answer.text}
