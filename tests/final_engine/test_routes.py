from __future__ import annotations

from pathlib import Path

import pytest
import redis

from core.errors import StartupError
from core.recipe import StyleUse, spelled
from core.scheduler import Task
from core.settings import Settings
from final_engine.routes import LEFT_TO_OTHERS_S, OTHERS_START_S, Routes, fused_of
from shared_cache.queue import Lanes
from shared_cache.registry import ReadyWorkers, Registry
from shared_cache.renders import Renders
from tests.makers import a_final_recipe
from tests.shared_cache.makers import BUCKET, LANE, MODEL, a_recipe, a_record, running

INK = StyleUse("ink", 0.8)


def task(*styles: StyleUse) -> Task:
    return Task("t", "128x128", 2, 20, arrived_s=100.0, styles=spelled(styles))


def ready(client: redis.Redis, fused: str | None = None, installed: tuple[str, ...] = ()) -> ReadyWorkers:
    about = {"model": "storybook", "version": "1", "roles": ["final"], "ready": True, "fused": fused}
    about["installed"] = installed
    Registry(client).announce("w", about, 60)
    return ReadyWorkers(Registry(client), "final", MODEL)


def test_styles_are_spelled_alike_in_any_order() -> None:
    noto = StyleUse("noto", 0.5)
    assert spelled((INK, noto)) == spelled((noto, INK)) == "ink:0.8+noto:0.5"
    assert spelled(()) == ""


def test_dedicated_worker_takes_its_style_alone(client: redis.Redis) -> None:
    routes = Routes(INK, ready(client, "ink:0.8"), ["ink"])
    assert routes.mine(task(INK), 100.0)
    assert not any(
        routes.mine(other, 999.0) for other in (task(), task(StyleUse("ink", 0.5)), task(INK, StyleUse("b", 1)))
    )
    assert routes.styles(a_final_recipe(styles=(INK,))) == ()
    assert routes.styles(a_final_recipe()) == ()


def test_others_leave_the_style_to_it_for_a_while(client: redis.Redis) -> None:
    routes = Routes(None, ready(client, "ink:0.8"), ["ink"])
    assert routes.mine(task(), 100.0) and routes.mine(task(StyleUse("ink", 1.0)), 100.0)
    assert not routes.mine(task(INK), 100.0)
    assert routes.mine(task(INK), 100.0 + LEFT_TO_OTHERS_S + 0.1)
    assert routes.styles(a_final_recipe(styles=(INK,))) == (INK,)


def test_everybody_takes_everything_where_nobody_is_dedicated(client: redis.Redis) -> None:
    routes = Routes(None, ready(client), ["ink"])
    assert routes.mine(task(INK), 100.0)
    assert routes.workers() == 1


def test_render_of_styles_that_are_not_here_is_left_to_who_has_them(client: redis.Redis) -> None:
    felt = StyleUse("felt", 1.0)
    late_s = 100.0 + OTHERS_START_S + 1
    somebody = ready(client, installed=("felt", "ink"))
    for now_s in (100.0, late_s):
        assert not Routes(None, somebody, ["ink"]).mine(task(felt, INK), now_s)
        assert Routes(None, somebody, ["ink", "felt"]).mine(task(felt, INK), now_s)


def test_render_of_styles_that_nobody_has_is_taken_after_a_while_to_be_failed(client: redis.Redis) -> None:
    routes = Routes(None, ready(client), ["ink"])
    assert not routes.mine(task(StyleUse("felt", 1.0)), 100.0)
    assert routes.mine(task(StyleUse("felt", 1.0)), 100.0 + OTHERS_START_S + 1)


def test_dedicated_lanes_show_renders_of_the_style_alone(client: redis.Redis) -> None:
    renders = Renders(client)
    for number in range(40):
        renders.create(a_record(f"plain{number}", recipe=a_recipe(styles=())), LANE)
    renders.create(a_record("inked", recipe=a_recipe(styles=(INK,))), LANE)
    assert [found.id for found in Lanes(client, [BUCKET], "w", "ink:0.8").peek()] == ["inked"]


def test_dedicated_worker_takes_over_renders_of_the_style_alone(client: redis.Redis) -> None:
    running(client, "plain", recipe=a_recipe(styles=()))
    running(client, "inked", recipe=a_recipe(styles=(INK,)))
    dedicated = Lanes(client, [BUCKET], "w", "ink:0.8", MODEL)
    assert [entry.render_id for entry in dedicated.take_over(0)] == ["inked"]
    assert len(Lanes(client, [BUCKET], "heir").take_over(0)) == 2


@pytest.mark.parametrize(
    ("text", "use"), [("ink", None), ("ink:0.5", StyleUse("ink", 0.5)), ("noto:1", StyleUse("noto", 1.0))]
)
def test_fuse_is_read_with_and_without_weight(bundle: Path, text: str, use: StyleUse | None) -> None:
    found = fused_of(Settings(fuse=text, model=str(bundle)))
    assert found is not None and found.id == text.partition(":")[0]
    assert use is None or found == use


@pytest.mark.parametrize(("text", "words"), [("nope", "no style 'nope'"), ("ink:much", "no number")])
def test_fuse_that_cannot_be_is_told(bundle: Path, text: str, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        fused_of(Settings(fuse=text, model=str(bundle)))


def test_nothing_is_fused_by_default(bundle: Path) -> None:
    assert fused_of(Settings(model=str(bundle))) is None
