"""Errors by who must act: the user, time, or us."""


class StokerError(Exception):
    """Has a code for programs, a sentence for people, and a hint of what to do."""

    code = "error"

    def __init__(self, sentence: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(f"{sentence} {hint}".strip())
        self.sentence, self.hint = sentence, hint
        if code:
            self.code = code


class UserError(StokerError):
    """What was asked cannot be done; the sentence says what to change."""

    code = "bad_request"


class NotFound(UserError):
    code = "not_found"


class Conflict(UserError):
    code = "conflict"


class Gone(UserError):
    """It was there, and is not kept any more."""

    code = "gone"


NOT_YET = "not_yet"
"""The code of what is as it should be and takes a while: it is tried again, and nobody is told of it."""


class Unavailable(StokerError):
    """Cannot be done now; the same call may succeed after `retry_after_s`."""

    code = "unavailable"

    def __init__(self, sentence: str, *, hint: str = "", code: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(sentence, hint=hint, code=code)
        self.retry_after_s = retry_after_s


class Broken(StokerError):
    """An invariant fell: a bug of ours, never the user's fault."""

    code = "broken"
