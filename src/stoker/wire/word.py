"""Words and lines of a configuration: names, commands, shells, paths."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, Strict
from pydantic_core import PydanticCustomError

from stoker.core.limits import MOST_COMMAND_CHARS, MOST_COMMANDS, MOST_PATH_CHARS
from stoker.wire.name import EXPECTED, is_name
from stoker.wire.problem import described


def refused(what: str, hint: str = "") -> PydanticCustomError:
    return PydanticCustomError("refused", "{what}", {"what": what, "hint": hint})


def no_nul(text: str) -> str:
    if "\0" in text:
        raise refused("the character NUL cannot be in it")
    return text


def _command(text: str) -> str:
    if not text.strip():
        raise refused("expected a command, got nothing")
    return no_nul(text)


def _name(text: str) -> str:
    if not is_name(text):
        like = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") if text.isascii() else ""
        hint = f"Did you mean {like}?" if is_name(like) else ""
        raise refused(f"expected {EXPECTED}, got {described(text)}", hint)
    return text


def _shell(text: str) -> str:
    if not text or text != text.strip() or any(character.isspace() for character in text):
        raise refused("expected the name or the path of a shell", "For example bash, or /bin/zsh.")
    return no_nul(text)


Name = Annotated[str, AfterValidator(_name), Field(description=EXPECTED)]
Command = Annotated[str, Strict(), Field(max_length=MOST_COMMAND_CHARS), AfterValidator(_command)]
Commands = Annotated[tuple[Command, ...], Field(strict=False, max_length=MOST_COMMANDS)]
Path = Annotated[str, Field(min_length=1, max_length=MOST_PATH_CHARS), AfterValidator(no_nul)]
Shell = Annotated[str, Field(max_length=MOST_PATH_CHARS), AfterValidator(_shell)]
