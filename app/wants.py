"""What routes ask FastAPI for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends
from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError
from starlette.requests import HTTPConnection

from app.context import Context, context_of
from app.owners import owner_of


async def _context(connection: HTTPConnection) -> Context:
    return context_of(connection)  # async, so that it costs no thread


async def _owner(connection: HTTPConnection) -> str:
    return owner_of(connection)


Here = Annotated[Context, Depends(_context)]
Owner = Annotated[str, Depends(_owner)]


def saying(sentence: str) -> WrapValidator:
    """One sentence for whatever a query parameter cannot be."""

    def check(text: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            return read(text)
        except ValidationError:
            raise PydanticCustomError("bounds", "{sentence}", {"sentence": sentence}) from None

    return WrapValidator(check)
