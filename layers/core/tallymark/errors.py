"""Every way in which a request can fail; runtime/http.py gives each its status.

TallymarkError
├── InvalidRequest        400  the caller must change the request
├── Unauthorized          401  who calls is not known
├── Forbidden             403  who calls may not do this
├── NotFound              404
├── MethodNotAllowed      405
├── Conflict              409
├── Exhausted             409
├── PayloadTooLarge       413
├── UnsupportedMediaType  415
├── RateLimited           429  try again later
└── Unavailable           503  try again soon; nothing is known to be lost
"""


class TallymarkError(Exception):
    """A failure with a message for the caller and, where one field is at fault, its path."""

    code = ""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidRequest(TallymarkError):
    """The request is not well formed."""

    code = "invalid_request"


class Unauthorized(TallymarkError):
    """The caller's identity is missing or forged."""

    code = "unauthorized"


class Forbidden(TallymarkError):
    """The caller is known and may not do this."""

    code = "forbidden"


class NotFound(TallymarkError):
    """There is nothing at this path or of this name."""

    code = "not_found"


class MethodNotAllowed(TallymarkError):
    """The path exists, this method on it does not."""

    code = "method_not_allowed"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class Conflict(TallymarkError):
    """The request contradicts what is stored."""

    code = "conflict"


class Exhausted(TallymarkError):
    """A quota has less left than was asked for."""

    code = "exhausted"


class PayloadTooLarge(TallymarkError):
    """The body is longer than the API takes."""

    code = "payload_too_large"


class UnsupportedMediaType(TallymarkError):
    """The body is declared as something other than JSON."""

    code = "unsupported_media_type"


class RetryLater(TallymarkError):
    """Base of the failures that pass; says after how many whole seconds to try again."""

    def __init__(self, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = max(1, retry_after_seconds)


class RateLimited(RetryLater):
    """The user made more calls than the limit allows."""

    code = "rate_limited"


class Unavailable(RetryLater):
    """A store did not answer or asked to slow down."""

    code = "unavailable"
