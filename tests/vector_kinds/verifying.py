"""Kinds of cases about the provider's signature; they need a2asgi and PyJWT, and come later where those are not."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from a2core import parse_message
from tests.vector_kinds.cases import Case, Kind, Later
from tests.vector_kinds.judging import SPACE
from tests.vector_kinds.values import bytes_of

if TYPE_CHECKING:
    from a2asgi.signatures import QStashVerifier

CAN_VERIFY: Final = find_spec("a2asgi") is not None and find_spec("jwt") is not None


def verifier(
    keys: tuple[str | None, str | None], environment: Mapping[str, str], now_s: int, leeway_s: Any
) -> "QStashVerifier | None":
    """The verifier that is configured so, by a whole pair of keys or by the environment; None: by nothing usable."""
    from a2asgi.errors import ConfigurationError  # noqa: PLC0415 - not there under Pyodide
    from a2asgi.signatures import QStashVerifier  # noqa: PLC0415 - not there under Pyodide
    from a2asgi.testing import ManualClock  # noqa: PLC0415 - not there under Pyodide

    current, following = keys
    clock = ManualClock(now_s * 1_000)
    try:
        if current and following:
            return QStashVerifier(current, following, leeway_s=leeway_s, clock=clock)
        return QStashVerifier.from_environment(environment, leeway_s=leeway_s, clock=clock)
    except ConfigurationError:
        return None


def receiver(case: Case) -> dict[str, object]:
    """The verdict, and the callback's status: what HTTP strips around a header is not there."""
    given = case.input
    keys = given["keys"].get("currentSigningKey"), given["keys"].get("nextSigningKey")
    judge = verifier(keys, given.get("env", {}), case.file["now_s"], 0)
    if judge is None:
        return {"verified": False, "status": 401}
    body, signature = body_of(given), given["signature"]
    verified, delivered = (
        judge.verify(text, body, given["url"], given.get("region")).accepted
        for text in (signature, signature.strip(SPACE))
    )
    return {"verified": verified, "status": status_of(delivered=delivered, body=body)}


def status_of(*, delivered: bool, body: bytes) -> int:
    """What the callback answers to such a delivery."""
    if not delivered:
        return 401
    return 489 if parse_message(body) is None else 200


def signature(case: Case) -> dict[str, object]:
    given = case.input
    keys = given["current_signing_key"], given["next_signing_key"]
    judge = verifier(keys, environment(given), given["clock"], leeway(given))
    if judge is None:
        return {"verdict": "reject"}
    verdict = judge.verify(token(given), body_of(given), given["url"], given.get("region"))
    return {"verdict": "accept" if verdict.accepted else "reject"}


def environment(given: Mapping[str, Any]) -> dict[str, str]:
    """The environment, with our name for what says production; development is asked for there alone."""
    names = {"NODE_ENV": "A2_ENV"}
    found = {names.get(name, name): value for name, value in (given.get("env") or {}).items()}
    if given.get("dev_mode") is not None:
        found["QSTASH_DEV"] = "1" if given["dev_mode"] else "0"
    return found


def leeway(given: Mapping[str, Any]) -> Any:
    tolerance = given["clock_tolerance"]
    return 0 if tolerance is None else float("nan") if tolerance == "NaN" else tolerance


def body_of(given: Mapping[str, Any]) -> bytes:
    """The body's bytes, however a case gives them."""
    if "body_recipe" in given:
        return joined(given["body_recipe"]["parts"])
    return bytes.fromhex(given["body_hex"]) if "body_hex" in given else bytes_of(given["body"])


def token(given: Mapping[str, Any]) -> str | None:
    """The token, or what its recipe makes."""
    match given.get("signature_recipe"):
        case {"kind": "parts", "parts": parts}:
            return joined(parts).decode()
        case {"kind": "hs256_over_payload_parts", "header": str(header), "key": key, "payload_parts": parts}:
            signed = base64url(header.encode()) + b"." + base64url(joined(parts))
            mac = hmac.digest(given[key].encode(), signed, "sha256")
            return (signed + b"." + base64url(mac)).decode()
        case _:
            text: str | None = given["signature"]
            return text


def joined(parts: list[tuple[str, int]]) -> bytes:
    return "".join(text * count for text, count in parts).encode()


def base64url(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


VERIFYING: Final = {
    "receiver": Kind(receiver, lambda case: {name: case.output[name] for name in ("verified", "status")}),
    "signature": Kind(signature, lambda case: {"verdict": case.output["recommended"]}),
}
VERIFYING_LATER: Final = () if CAN_VERIFY else (Later("receiver", ("receiver",)), Later("signature", ("signature",)))
