"""Who may send requests, and the answers to them.

    /         the page: one document, with its style and its script in it
    /data     the numbers and the points of the charts, as JSON
    /events   the same as server-sent events, and then what is new

Every request needs the token of the address and a Host header that names this machine. The token keeps out other users and
programs of this machine; the Host keeps out websites whose name was made to resolve to this machine (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reap.display.page.feed import Feed

HOSTS = ["127.0.0.1", "localhost"]

REFUSED = "This page needs the token in its address: open the complete address that the running collection printed.\n"


def application(feed: Feed, token: str) -> Starlette:
    """The application of one run.

    Args:
        feed: provides the numbers.
        token: required in each request.
    """
    html, policy = document()

    async def page(_: Request) -> HTMLResponse:
        return HTMLResponse(html)

    async def data(_: Request) -> JSONResponse:
        return JSONResponse(feed.whole())

    async def events(_: Request) -> StreamingResponse:
        return StreamingResponse(feed.news(), media_type="text/event-stream")

    @asynccontextmanager
    async def reading(_: Starlette) -> AsyncGenerator[None]:
        task = asyncio.create_task(feed.run())
        yield
        task.cancel()

    return Starlette(
        routes=[Route("/", page), Route("/data", data), Route("/events", events)],
        middleware=[
            Middleware(SafeHeaders, policy=policy),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS),
            Middleware(TokenOnly, token=token),
        ],
        lifespan=reading,
    )


@cache
def document() -> tuple[str, str]:
    """The page, and the content security policy that allows its own script and style, and nothing from other origins."""
    folder = files("reap.display.page")
    html, style, script = (folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.replace("/* style */", style).replace("/* script */", script), policy


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class TokenOnly:
    """Refuses all requests without the token.

    Args:
        app: answers the other requests.
        token: the token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            given = QueryParams(scope["query_string"]).get("token", "")
            if not secrets.compare_digest(given.encode(), self._token):
                await PlainTextResponse(REFUSED, status_code=403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class SafeHeaders:
    """Adds headers: no caching, no loading from elsewhere, and no referrer, which would reveal the address.

    Args:
        app: makes the answers.
        policy: the content security policy.
    """

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self._app = app
        self._headers = {
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, with_headers)
