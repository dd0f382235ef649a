"""Tags: words of a person's own, by which what they have made is found again."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from stoker.core.limits import MOST_TAG_CHARS, MOST_TAGS
from stoker.wire.problem import described
from stoker.wire.word import refused


def _read(value: Any) -> dict[str, str]:
    hint = "Write them as {team: vision, budget: q3}."
    if not isinstance(value, dict):
        raise refused(f"expected a map, got {described(value)}", hint)
    if len(value) > MOST_TAGS:
        raise refused(f"expected at most {MOST_TAGS} of them", hint)
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]{0,62}", str(name)):
            raise refused(f"{described(name)} is no name of a tag: letters, digits, '_', '.', '/', '-'", hint)
        if isinstance(text, bool) or not isinstance(text, str | int) or len(str(text)) > MOST_TAG_CHARS:
            raise refused(f"{name}: expected text of at most {MOST_TAG_CHARS} characters, got {described(text)}", hint)
        if not str(text).isprintable():
            raise refused(f"{name}: expected text that can be printed", hint)
    return {str(name): str(text) for name, text in value.items()}


Tags = Annotated[
    dict[str, str],
    BeforeValidator(_read),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": MOST_TAG_CHARS},
            "description": "Your own words, to find it by: {team: vision}.",
        }
    ),
]
