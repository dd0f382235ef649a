"""Names that people give to things: they appear in URLs, in logs and later in host names."""

import re
from typing import Annotated, Final

from pydantic import Field

NAME: Final = r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"
_NAME: Final = re.compile(NAME.replace("$", r"\Z"))
EXPECTED: Final = "a name of 1 to 63 small letters, digits and dashes that begins with a letter and ends without a dash"

Name = Annotated[str, Field(pattern=NAME, max_length=63, description=EXPECTED)]


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None
