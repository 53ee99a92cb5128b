"""The web process: API, socket and page in one FastAPI app."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # Gradio reads it at import

import gradio as gr
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.staticfiles import StaticFiles

from app import errors, follow, live, meta, metrics, objects, previews, renders
from app.asking import ANSWER_TIMEOUT_S
from app.context import Context, open_context
from app.gradio_api import endpoints
from app.limits import BodyLimit
from app.owners import OwnerCookie
from app.page.blocks import STATIC_DIR, build_page, mount_kwargs
from app.proxies import Manifest, SubPath
from app.sweeper import Sweeper
from core.settings import Settings
from shared_cache.events import Tail

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def create_app(settings: Settings, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> FastAPI:
    """Raises: StartupError when the model folder is broken or the queue cannot be reached."""
    context = open_context(settings, answer_timeout_s)
    app = FastAPI(title="Firstlight", docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.context = context
    errors.install(app)
    for part in (meta, metrics, previews, renders, follow, live, objects):
        app.include_router(part.router)
    for unknown in ("/api/{rest:path}", "/gradio_api/upload"):  # nobody uploads through Gradio
        app.add_api_route(unknown, _nothing_here, methods=METHODS, include_in_schema=False)
    # Gradio's own files live under /static too; ours come first.
    static = Fresh(directory=STATIC_DIR, packages=[("gradio", "templates/frontend/static")])
    app.mount("/static", static, name="static")
    app.add_middleware(BodyLimit)
    app.add_middleware(OwnerCookie)
    app.add_middleware(Manifest)
    app.add_middleware(SubPath, root_path=settings.root_path)
    _add_page(app, context)
    return app


class Fresh(StaticFiles):
    """Browsers ask whether a file has changed before they use their copy."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: Context = app.state.context
    loop = asyncio.get_running_loop()
    context.pulses.start(loop)
    context.router.start(loop)
    tail = Tail(context.redis)
    tail.start(context.pulses.pulse)
    sweeper = Sweeper(context.renders, context.registry, context.clock, context.metrics)
    sweeper.start()
    publishing = asyncio.create_task(metrics.publish(context))
    yield
    publishing.cancel()
    await asyncio.to_thread(sweeper.stop)
    await asyncio.to_thread(tail.stop)
    await asyncio.to_thread(context.router.stop)


def _add_page(app: FastAPI, context: Context) -> None:
    page = build_page(
        meta.describe_models(context.profile), meta.describe_catalogue(context.catalogue)["styles"], endpoints(context)
    )
    handlers = {"exception_handlers": {HTTPException: errors.on_http_of_page}}
    gr.mount_gradio_app(app, page, path="/", app_kwargs=handlers, **mount_kwargs())


async def _nothing_here(request: Request) -> None:
    """Gradio answers every path that is not ours; under /api/ an unknown one is an error of ours."""
    for route in request.app.router.routes:
        match, _ = route.matches({**request.scope, "path_params": {}})
        if match is Match.PARTIAL:
            raise HTTPException(405)
    raise HTTPException(404)
