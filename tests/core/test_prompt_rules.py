import pytest

from core.errors import BlockedPrompt
from core.prompt_rules import check_prompt


@pytest.mark.parametrize(
    "prompt",
    [
        "a naked mole rat",
        "a baby naked mole rat",
        "a cocktail",
        "a girl on the beach",
        "a cat in boots",
        "a shooting star",
        "stars with the naked eye over a man",
        "Essex",
        "a nectarine",
        "テスト 😀",
    ],
)
def test_check_prompt_passes_when_innocent(prompt: str) -> None:
    check_prompt(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "a nude",
        "NUDE",
        "n u d e photo",
        "p0rn",
        "naked woman",
        "nu(de:1.2)",
        "a d\u00e9capitated n\u00fade",
        "n\u200bude",
        "sexy schoolgirl",
        "a beheaded knight",
    ],
)
def test_check_prompt_blocks_when_a_rule_holds(prompt: str) -> None:
    with pytest.raises(BlockedPrompt) as caught:
        check_prompt(prompt)
    assert prompt not in caught.value.message
