"""When a job ended is told by a clock that nobody sets, as long as the host was not booted since."""

import time

from stoker.runner.deadline import clock
from stoker.runner.proc import boot_id
from stoker.shim.task import _ago_s
from stoker.wire.runner import Result

HOUR_S = 3600.0


def result(**more: object) -> Result:
    return Result.model_validate({"exit_code": 0, "ended_at": time.time() - 5.0, "log_end": 0} | more)


def test_the_clock_of_the_host_is_set_and_the_end_stays_where_it_was() -> None:
    ended = result(ended_up_s=clock() - 5.0, boot=boot_id())
    for by_s in (0.0, HOUR_S, -HOUR_S):
        assert 5.0 <= _ago_s(ended, time.time() + by_s) < 15.0


def test_after_a_boot_the_time_of_day_is_all_there_is() -> None:
    assert 5.0 <= _ago_s(result(ended_up_s=1.0, boot="another"), time.time()) < 15.0
    assert 5.0 <= _ago_s(result(), time.time()) < 15.0
    assert _ago_s(result(), time.time() - HOUR_S) == 0.0
