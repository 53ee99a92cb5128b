"""The one exception tree.

FirstlightError
├── InvalidInput      a field is wrong; names the field and the bound
├── BlockedPrompt     the prompt rules refuse the text; no compute was spent
├── NotFound          no such thing, or not this owner's
├── Conflict          the same key was used for something else
├── Overloaded        no room, or the deadline cannot be met; says when and what would fit
│   └── OverQuota     there is room, but not for more of this owner's
├── Unavailable       a part that the request needs is not there (yet)
├── NonFinite         NaN or infinity in latents or pixels, also after the fp32 retry; names the styles that acted
└── StartupError      the process cannot start; names cause and remedy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self


class FirstlightError(Exception):
    """A failure with a stable code and a sentence for a person."""

    code = "error"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def as_dict(self) -> dict[str, object]:
        """The body that stands under "error" in JSON answers."""
        body: dict[str, object] = {"code": self.code, "message": self.message}
        if self.field is not None:
            body["field"] = self.field
        return body


class InvalidInput(FirstlightError):
    code = "invalid"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", field=field)


class BlockedPrompt(FirstlightError):
    code = "blocked"


class NotFound(FirstlightError):
    code = "not_found"


class Conflict(FirstlightError):
    code = "conflict"


class Overloaded(FirstlightError):
    """Units: retry_after_s and predicted_s in seconds."""

    code = "overloaded"

    def __init__(
        self, message: str, *, retry_after_s: float, predicted_s: float, fits: dict[str, int] | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.predicted_s = predicted_s
        self.fits = fits

    def as_dict(self) -> dict[str, object]:
        body = FirstlightError.as_dict(self)
        body["retry_after_s"] = round(self.retry_after_s, 3)
        body["predicted_s"] = round(self.predicted_s, 3)
        if self.fits is not None:
            body["fits"] = self.fits
        return body


class OverQuota(Overloaded):
    code = "quota"


class Unavailable(FirstlightError):
    code = "unavailable"


class NonFinite(FirstlightError):
    """What gave NaN or infinity; where styles acted it was they, since the networks alone do not."""

    code = "non-finite"

    @classmethod
    def of(cls, what: str, styles: Sequence[object]) -> Self:
        """what as a clause, as "step 1 of 4 gave values that are not finite"."""
        if not styles:
            return cls(what)
        names = ", ".join(map(str, styles))
        return cls(f"styles: {names}: {what}; lower the weight, or leave the style out", field="styles")


class StartupError(FirstlightError):
    code = "startup"

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}\n  what to do: {remedy}")
        self.cause = cause
        self.remedy = remedy
