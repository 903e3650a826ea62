"""API documentation that works without the internet."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path

import fastapi_standalone_docs  # type: ignore[import-untyped] # it ships no types
from fastapi import FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.staticfiles import StaticFiles

ASSETS = "/docs/assets"
# Of FastAPI's own pages.
_METHODS = ["GET", "HEAD"]
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def add_docs(app: FastAPI) -> None:
    """Serve Swagger UI at /docs and ReDoc at /redoc, with files served by this process.

    `fastapi_standalone_docs` itself patches FastAPI for the whole process; only its files are used.
    """
    folder = Path(str(files(fastapi_standalone_docs) / "static"))
    app.mount(ASSETS, StaticFiles(directory=folder), name="docs-assets")

    @app.api_route("/docs", methods=_METHODS, include_in_schema=False)
    async def swagger(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        page = get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{root}{ASSETS}/swagger/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{ASSETS}/swagger/swagger-ui.css",
            swagger_favicon_url=f"{root}{ASSETS}/fastapi/favicon.png",
        )
        return _restricted(page)

    @app.api_route("/redoc", methods=_METHODS, include_in_schema=False)
    async def redoc(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        page = get_redoc_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            redoc_js_url=f"{root}{ASSETS}/redoc/redoc.standalone.js",
            redoc_favicon_url=f"{root}{ASSETS}/fastapi/favicon.png",
            with_google_fonts=False,
        )
        return _restricted(page)

    @app.api_route("/", methods=_METHODS, include_in_schema=False)
    async def index(request: Request) -> RedirectResponse:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/docs")


def _restricted(page: HTMLResponse) -> HTMLResponse:
    """Return `page` with a Content-Security-Policy: files and requests of this origin only.

    Its own inline scripts are allowed by their hashes. Both pages add styles, and ReDoc starts a
    worker. No other site may frame them.
    """
    hashes = (
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in _INLINE_SCRIPT.findall(bytes(page.body).decode())
    )
    page.headers["Content-Security-Policy"] = (
        f"default-src 'none'; script-src 'self' {' '.join(hashes)}; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
        "worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    page.headers["X-Content-Type-Options"] = "nosniff"
    return page
