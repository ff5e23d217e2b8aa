"""A webhook that only GitHub can call: the signature is checked over the raw bytes before the app hears of a request.

    GITHUB_WEBHOOK_SECRET=... uvicorn --factory examples.github_webhook:make_app

Any sender that puts an HMAC of the body into a header is guarded the same way: name its header, prefix and encoding.
"""

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from a2asgi import HmacVerifier, SignatureMiddleware


async def github(request: Request) -> JSONResponse:
    """Tell what happened. The body is what GitHub signed, so nothing else can be in it."""
    event = await request.json()
    return JSONResponse({"repository": event["repository"]["full_name"], "action": event.get("action")})


async def home(_: Request) -> PlainTextResponse:
    """Answer anyone: only /github is guarded."""
    return PlainTextResponse("hello")


def guarded(secret: str) -> SignatureMiddleware:
    """The app behind its guard. An empty secret is a ConfigurationError here, not an open door later."""
    routes = [Route("/github", github, methods=["POST"]), Route("/", home)]
    return SignatureMiddleware(Starlette(routes=routes), HmacVerifier(secret), paths=["/github"])


def make_app() -> SignatureMiddleware:
    """Make the app with the secret that GitHub was given."""
    return guarded(os.environ.get("GITHUB_WEBHOOK_SECRET", ""))
