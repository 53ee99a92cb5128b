from __future__ import annotations

from pathlib import Path

from core.prompt_rules import check_prompt
from core.recipe import Handoff
from core.validate import check_recipe
from final_engine.gate.cases import POOLS, gate_set
from sampling.judge import load_judge
from sampling.profile import load_profile
from styles.catalogue import load_catalogue

WITHOUT_STYLES: frozenset[str] = frozenset()


def test_the_set_has_fifty_prompts_with_and_without_styles(bundle: Path) -> None:
    ids = load_catalogue(bundle / "styles").ids()
    cases = gate_set(ids)
    assert len(gate_set(WITHOUT_STYLES)) >= 50
    assert len({(case.prompt, case.styles) for case in cases}) == len(cases) == len({case.seed for case in cases})
    assert {use.id for case in cases for use in case.styles} == ids
    assert len({case.shape for case in cases}) == 5


def test_every_case_is_a_recipe_that_the_product_takes(bundle: Path) -> None:
    profile, ids = load_profile(bundle), load_catalogue(bundle / "styles").ids()
    for case in gate_set(ids):
        for pool in POOLS:
            check_recipe(case.recipe(profile, pool), profile, ids, pool)
        check_prompt(case.prompt)


def test_the_judge_knows_what_is_asked(bundle: Path) -> None:
    judge = load_judge(bundle)
    assert judge is not None
    known = {head: set(names) for head, names in judge.classes.items()}
    for case in gate_set(load_catalogue(bundle / "styles").ids()):
        assert all(name in known[head] for head, name in case.asked.items()), case.prompt


def test_the_short_form_has_some_of_everything(bundle: Path) -> None:
    profile, cases = load_profile(bundle), gate_set(load_catalogue(bundle / "styles").ids(), short=True)
    assert len(cases) == 4
    assert any(case.styles for case in cases) and any(case.shape != (1, 1) for case in cases)
    assert len({(case.alone, case.follows) for case in cases}) == 4
    handoffs = {case.recipe(profile, "final").handoff for case in cases}
    assert handoffs == {Handoff.MATCH, Handoff.FRESH}
