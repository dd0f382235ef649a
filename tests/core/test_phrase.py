"""Amounts as they stand in sentences."""

import pytest

from stoker.core import phrase
from stoker.core.resources import parse_request


@pytest.mark.parametrize(
    ("mb", "up", "down"),
    [
        *[(0, "0 MB", "0 MB"), (512, "512 MB", "512 MB"), (4096, "4 GB", "4 GB"), (4097, "4.1 GB", "4 GB")],
        *[(7891, "7.8 GB", "7.7 GB"), (1024 * 1024, "1 TB", "1 TB")],
    ],
)
def test_what_is_needed_is_rounded_up_and_what_there_is_down(mb: int, up: str, down: str) -> None:
    """Else a person reads that it needs 4 GB and that 4 GB are free."""
    assert phrase.amount("memory", mb, up=True) == f"{up} of memory"
    assert phrase.bare("memory", mb) == down


def test_what_is_free_is_told_beside_what_there_is() -> None:
    assert phrase.spare("cpu", 0.5, 2) == "0.5 of 2 CPUs"
    assert phrase.spare("cpu", 0.999, 1) == "0.99 of 1 CPU"
    assert phrase.spare("memory", 2048, 8192) == "2 of 8 GB of memory"
    assert phrase.spare("memory", 512, 8192) == "512 MB of 8 GB of memory"
    assert phrase.spare("license", 1, 3) == "1 of 3 license"


def test_everything_that_is_asked_for_is_one_list() -> None:
    asked = {"cpu": 2, "memory": "8GB", "disk": "1TB", "gpu": "A100:2", "named": {"license": 1}}
    assert phrase.needed(parse_request(asked)) == "2 CPUs, 8 GB of memory, 1 TB of disk, 2 A100 and 1 license"
    assert phrase.needed(parse_request({"cpu": "..4"})) == ""
