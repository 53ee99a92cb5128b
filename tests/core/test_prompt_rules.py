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
        "красивая женщина на берегу моря, не голая скала",
        "a naked tree, но не человек",
        "девочка и мальчик рисуют дом",
        "олень, роги и хвост",
        "мама мыла раму, русский текст, сухой нос",
        "γυναίκα στην παραλία, όμορφο ηλιοβασίλεμα",
        "ΑΝΘΡΩΠΟΣ ΚΑΙ ΘΑΛΑΣΣΑ",
        "👩\u200d🎨 paints a boy 🇸🇪🇷🇺",
        "می\u200cخواهم",
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
        "naked\u200bwoman",
        "na\u200bked\u200bwo\u00adman",
        "𝐏𝐎𝐑𝐍",
        "𝐩𝐨𝐫𝐧",
        "ＰＯＲＮ",
        "ℕaked woman",
        "🄿🄾🅁🄽",
        "🅟🅞🅡🅝",
        "🅿🅾🆁🅽",
        "🇵🇴🇷🇳",
        "\u0440\u043erno",  # Cyrillic er, o
        "\u0420\u041eRN",
        "\u0455\u0435\u0445y schoolgirl",
        "\u041dentai",
        "p\u03bfrn",  # Greek omicron
        "\u039dude",
        "ᴘᴏʀɴ",
        "pørn",
        "p\u0336o\u0336r\u0336n\u0336",
        "р0rn",
        "sexy schoolgirl",
        "a beheaded knight",
    ],
)
def test_check_prompt_blocks_when_a_rule_holds(prompt: str) -> None:
    with pytest.raises(BlockedPrompt) as caught:
        check_prompt(prompt)
    assert prompt not in caught.value.message
