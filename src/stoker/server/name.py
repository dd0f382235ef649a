"""Names for runs whose configuration gives none: easy to say, and seldom the same twice."""

import random
from typing import Final

_ADJECTIVES: Final = """
amber brave bright calm clever cosy deft eager early fair fleet fond glad gold grand keen kind late light lively lucky
mellow merry mild neat nimble noble plain proud quick quiet rapid ready robust sharp silent sleek smart snug solid spry
stark steady still stout sunny swift tidy true warm wise witty
"""
_NOUNS: Final = """
anvil ash badger bear bellows birch boiler brook cedar cinder coal comet crane crow delta ember falcon fern finch flint
forge fox furnace glade hammer hare hawk heron ingot iron kettle kiln lark lynx maple moss otter owl pine piston poker
quartz raven reed river robin rook rowan seal smelter spark sparrow steam stone swan thrush tinder torch valve willow
wren
"""
_FIRST, _SECOND = _ADJECTIVES.split(), _NOUNS.split()


def name_of(dice: random.Random) -> str:
    return f"{dice.choice(_FIRST)}-{dice.choice(_SECOND)}-{dice.randrange(10_000)}"
