"""The short form of benchmarks/chaos: one mishap of each kind while renders run, over processes of one role each."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chaos import Chaos, account, await_all, cluster, submit_all

RENDERS = 8


def test_nothing_is_lost_or_done_twice_when_everything_fails_once(tmp_path: Path) -> None:
    with cluster(tmp_path, roles=("final", "decode", "finish")) as (server, workers, context):
        ids = submit_all(context, RENDERS, pause_s=0.1)
        chaos = Chaos(server, workers, context, seed=1)
        chaos.once_each()
        outcome = account(context, ids, await_all(context, ids, timeout_s=240))
    assert chaos.happened["queue killed and started again"] == 1
    assert sum(count for what, count in chaos.happened.items() if what.endswith("killed")) == 3
    assert outcome.pop("done") == RENDERS
    assert set(outcome.values()) == {0}, outcome
