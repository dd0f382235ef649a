"""What is told of many measurements is made of their buckets, and stays within what was measured."""

import pytest

from stoker.server.statistics import measure
from stoker.store.tally import Figure


def test_gpus_that_were_used_in_full_were_not_used_by_more_than_all_of_them() -> None:
    """A bucket reaches beyond its largest value: its middle may be 104 % where 100 % is all there is."""
    told = measure({99: Figure(1, 48.2), 117: Figure(9, 900.0)})
    assert (told.least, told.most, told.p50, told.p99) == (48.2, 100.0, 100.0, 100.0)
    assert told.mean == pytest.approx(94.82)


def test_a_bucket_that_was_counted_down_to_nothing_is_not_among_them() -> None:
    """An attempt that was given back is taken out of the figures again."""
    told = measure({3: Figure(0, 0.0), 5: Figure(2, 3.0)})
    assert (told.count, told.least, told.most) == (2, 1.5, 1.5)
