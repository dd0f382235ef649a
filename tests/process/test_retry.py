"""What is tried again by itself, with real agents: in place, after a backoff, and across the end of a server."""

from collections.abc import Callable

from stoker.client.client import Json
from tests.process.crowd import Yard
from tests.process.stand import Stand, until


def submissions(run: Json) -> list[tuple[int, int, str]]:
    return [(one["replica"], one["submission"], one["status"]) for one in run["jobs"]]


def test_one_replica_is_tried_again_in_place_while_another_runs(stand: Stand, yard: Yard) -> None:
    here = f"[ $STOKER_REPLICA = 1 ] && exit $((2 - STOKER_SUBMISSION)); {yard.gate('in-place')}"
    stand.submit("in-place", here, replicas=2, retry={"on_events": ["error"], "max_attempts": 3})

    def again() -> bool:
        return (1, 2, "DONE") in submissions(stand.get("in-place"))

    until(again, "replica 1 was tried again at once")
    run = stand.get("in-place")
    assert run["status"] == "RUNNING"
    assert submissions(run) == [(0, 1, "RUNNING"), (1, 1, "FAILED"), (1, 2, "DONE")]
    yard.open("in-place")
    assert stand.finished("in-place")["status"] == "DONE"


def test_a_chosen_exit_code_begins_again_and_counts_as_no_try(stand: Stand) -> None:
    retry = {"on_exit_codes": [75], "on_events": ["error"], "max_attempts": 1}
    run = stand.run("codes", "[ $STOKER_SUBMISSION = 2 ] || exit 75", retry=retry, patience_s=60)
    assert (run["status"], submissions(run)) == ("DONE", [(0, 1, "FAILED"), (0, 2, "DONE")])


def test_what_is_not_among_the_events_is_not_tried_again(stand: Stand) -> None:
    run = stand.run("once", "exit 3", retry={"on_events": ["interruption", "no-capacity"]})
    assert (run["status"], run["termination_reason"], len(run["jobs"])) == ("FAILED", "JOB_FAILED", 1)


def test_a_server_that_dies_in_the_middle_of_a_backoff_keeps_the_budget(own_stand: Callable[..., Stand]) -> None:
    """Two tries are two tries, however often the server was started between them."""
    stand = own_stand()
    stand.start()
    stand.submit("tries", "exit 5", retry={"max_attempts": 2})
    waiting = stand.reaches("tries", "PENDING")
    assert "tries again at" in waiting["status_message"]
    stand.kill_server()
    stand.start()
    assert stand.get("tries")["status"] == "PENDING", "a restart neither renews nor cuts it"
    run = stand.finished("tries", 60)
    assert (run["status"], run["termination_reason"]) == ("FAILED", "RETRY_LIMIT_EXCEEDED")
    assert submissions(run) == [(0, 1, "FAILED"), (0, 2, "FAILED")]
    again = stand("retry", "tries")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("tries  ")
    stand.kill_server()
    stand.start()
    assert stand.get("tries")["retry_of"] == run["id"], "accepted is accepted"
    stand.stop("tries", abort=True)
