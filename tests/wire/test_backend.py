"""`backends.yml`: what is right is taken as it is written, what is wrong is refused with its line and a way out."""

import pytest

from stoker.core.gpu import Gpu
from stoker.wire.backend import load
from stoker.wire.dummy import Lie, default_offers
from stoker.wire.model import Invalid

FULL = """
dummy:
  offers:
    - name: box
      cpu: 4
      memory: 16GB
      gpu: H100:80GB:2
      price: 2
      spot_price: 0.5
      locations: [north, south]
      capacity: 3
      launch_delay: 1m30s
      preempt_after: off
      lie: forget
"""


def test_a_whole_file_is_taken_as_it_is_written() -> None:
    dummy = load(FULL).dummy
    assert dummy is not None
    (box,) = dummy.offers
    assert (box.cpu, box.memory, box.disk) == (4, 16 * 1024, 100 * 1024)
    assert box.gpu == (Gpu(0, "H100", 80 * 1024), Gpu(1, "H100", 80 * 1024))
    assert (box.price, box.spot_price, box.locations, box.capacity) == (2, 0.5, ("north", "south"), 3)
    assert (box.launch_delay, box.preempt_after, box.lie) == (90.0, None, Lie.FORGET)


def test_a_file_with_nothing_in_it_says_nothing() -> None:
    assert load("# later\n").dummy is None
    assert load("dummy:\n").dummy is None


def test_without_a_file_there_are_three_kinds_at_two_places_on_demand_and_spot() -> None:
    found = {one.name: one for one in default_offers()}
    assert set(found) == {"small", "large", "gpu8"}
    assert all(one.spot_price is not None and len(one.locations) == 2 and not one.real for one in found.values())
    assert len(found["gpu8"].gpu) == 8


@pytest.mark.parametrize(
    ("lines", "line", "key", "said", "hint"),
    [
        ("memry: 8GB", 6, "dummy.offers.0.memry", "no such key", "Did you mean memory?"),
        ("memory: 8GB\n      capcity: 3", 7, "dummy.offers.0.capcity", "no such key", "Did you mean capacity?"),
        ("memory: much", 6, "dummy.offers.0.memory", "expected a size", "8GB"),
        ("memory: 8GB\n      capacity: -1", 7, "dummy.offers.0.capacity", "at least 0", ""),
        ("memory: 8GB\n      lie: forgot", 7, "dummy.offers.0.lie", "expected 'none'", "Did you mean forget?"),
        ("memory: 8GB\n      gpu: A100,H100:2", 7, "dummy.offers.0.gpu", "one name", "A100:8"),
        ("memory: 8GB\n      gpu: A100:2\n      real: true", 7, "dummy.offers.0.gpu", "no GPUs of its own", "real"),
        ("memory: 8GB\n      launch_delay: soon", 7, "dummy.offers.0.launch_delay", "length of time", "90s"),
        ("memory: 8GB\n      locations: [a, a]", 7, "dummy.offers.0.locations", "twice", ""),
    ],
)
def test_what_is_wrong_is_refused_with_its_line_and_a_way_out(
    lines: str, line: int, key: str, said: str, hint: str
) -> None:
    with pytest.raises(Invalid) as refused:
        load(f"dummy:\n  offers:\n    - name: box\n      # how large\n      cpu: 4\n      {lines}\n")
    (problem,) = refused.value.problems
    assert (problem.line, problem.key) == (line, key)
    assert said in problem.message
    assert hint in problem.hint


def test_two_offers_of_one_name_are_refused() -> None:
    one = "    - {name: box, cpu: 4, memory: 8GB}\n"
    with pytest.raises(Invalid, match="two offers box"):
        load(f"dummy:\n  offers:\n{one}{one}")
