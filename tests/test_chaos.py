"""The short form of benchmarks/chaos: one mishap of each kind while renders run, over processes of one role each."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chaos import Chaos, account, await_all, cluster, submit_all

RENDERS = 8
LINK_MS = 50
AWAY_S = 3.0  # longer than the store is asked again for a single write


def test_nothing_is_lost_or_done_twice_when_everything_fails_once(tmp_path: Path) -> None:
    with cluster(tmp_path, roles=("final", "decode", "finish"), link_ms=LINK_MS) as there:
        ids = submit_all(there.context, RENDERS, pause_s=0.1)
        chaos = Chaos(there, seed=1)
        chaos.once_each(AWAY_S)
        outcome = account(there.context, ids, await_all(there.context, ids, timeout_s=240))
    for what in ("queue killed and started again", "queue hung", "store away"):
        assert chaos.happened[what] == 1
    assert sum(count for what, count in chaos.happened.items() if what.endswith("worker killed")) == 3
    assert outcome.pop("done") == RENDERS
    assert set(outcome.values()) == {0}, outcome
