"""Errors of paths under `/v1/` as clients of OpenAI expect them."""

import re
from typing import Any

# Statuses of this server -> the status, type and code of OpenAI. Others are wrong requests.
_WRONG_REQUEST = "invalid_request_error"
_KNOWN: dict[int, tuple[int, str, str | None]] = {
    401: (401, _WRONG_REQUEST, "invalid_api_key"),
    403: (403, _WRONG_REQUEST, None),
    404: (404, _WRONG_REQUEST, None),
    405: (405, _WRONG_REQUEST, "method_not_allowed"),
    408: (408, _WRONG_REQUEST, None),
    429: (429, "requests", "rate_limit_exceeded"),
    431: (431, _WRONG_REQUEST, None),
    499: (499, _WRONG_REQUEST, None),
    500: (500, "server_error", None),
    503: (503, "server_error", None),
}
_PARAMETER = re.compile(r"(input|dimensions|encoding_format|model|truncate|user)\b(\[\d+\])*: ")


def openai_error(
    status: int, what: str, *, failed: bool = False, code: str | None = None
) -> tuple[int, Any]:
    """Return the status and the body of an error.

    Args:
        status: on the other paths.
        what: the message. If it begins with a field of the request, the error names that as
            `param`.
        failed: whether the server failed, and not the request.
        code: a code of OpenAI; None: that of the status.
    """
    openai_status, kind, usual_code = _KNOWN.get(status, (400, _WRONG_REQUEST, None))
    if failed:
        openai_status = 500
        kind = "server_error"
        usual_code = None
    field = _PARAMETER.match(what)
    error = {
        "message": what,
        "type": kind,
        "param": field[1] if field else None,
        "code": code or usual_code,
    }
    return openai_status, {"error": error}
