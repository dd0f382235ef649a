"""`blocks`: into how many equal parts a machine is divided, as people write it."""

from difflib import get_close_matches
from typing import Any

from stoker.core.block import AUTO, MAX_BLOCKS
from stoker.wire.problem import described
from stoker.wire.word import refused


def read_blocks(value: Any) -> int | str:
    hint = "Write auto, or a whole number such as 4."
    if value == AUTO:
        return AUTO
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BLOCKS:
        hint = "Did you mean auto?" if get_close_matches(str(value), [AUTO], 1) else hint
        raise refused(f"expected auto or 1 to {MAX_BLOCKS}, got {described(value)}", hint)
    return value
