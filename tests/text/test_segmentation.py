"""Sentences: a hand-made gold set of tricky cases, properties that hold for any text, and time that
stays linear."""

import re

import pytest
from hypothesis import example, given, settings, strategies as st

from bertworks.text.segmentation import LONGEST_SENTENCE, split_sentences

# In every line " | " stands where a cut belongs; nothing else is cut. Lines with \n hold the line's
# end themselves.
ENGLISH = r"""
He left. | She stayed.
Mr. Smith met Mrs. Jones. | They talked.
Dr. J. R. Watson, M.D., was born in 1852. | He studied in London.
The U.S. Army moved in. | It stayed.
He moved to the U.S. | The move was hard.
She works in Washington, D.C. | In summer it is hot there.
It cost 3.14 dollars. | That is cheap.
See Fig. 3 and p. 12 of vol. 2 for details. | They are clear.
No. 5 is alive. | No. 6 is not.
"Is it?" he asked. | "Yes."
"I know." | She smiled.
"Stop!" cried the man. | Nobody stopped.
He said "no." | Then he left.
(He left early.) | Nobody noticed.
He left (it was late). | She stayed.
Wait... what? | Nothing.
He paused... | Then he went on.
Well… maybe not. | Perhaps.
Really?! | Yes!!! | Good.
Apple Inc. announced a phone. | Google did not.
He worked for Apple Inc. | The company paid well.
Tools, e.g. hammers, i.e. things, etc. are listed. | That is all.
Johnson et al. (2004) found it. | Others did not.
It was 5 p.m. | He went home.
It was 5 p.m. Eastern time. | Dark already.
Maj. Gen. William F. Smith's corps arrived on Jan. 5, 1864. | It rested.
J.R.R. Tolkien and C. S. Lewis were friends. | They met often.
King George V. | He reigned until 1936.
Robert F. Kennedy, Jr. spoke. | People listened.
She lived on Main St. | The house was old.
St. Mary's Church stands there. | It is old.
Visit example.com. | It is free.
Visit www.example.com/a.b?c=d! | Now.
He got 2. | She got 3.
1. Introduction
IV. The Battle of the Nile
A. Methods
1. First do this. | Then do that.
It was founded in 1990. | 500 people came.
She was born in c. 1900 and died ca. 1950. | Nobody knows.
iPhones sell well. iPads too, he said.
He liked the Ph.D. programme. | She liked the other.
It was the end.[1] | Another began.
It was the end.[12][3] | Another began.
'Yes.' | 'No.'
“Yes.” | “No.”
He wrote "Help!", "Yesterday" and "Hey!" and left. | Good.
Prof. Dr. h.c. Müller kam am 3. Oktober. | Er blieb bis zum 5. Mai.
M. Dupont est parti. | Il reviendra.
¿Qué pasa? | ¡Nada!
El Sr. López llegó. | La Sra. García no.
Section 3. | This article holds.
The temperature was 27 °C. | It rose.
Lt.-Gen. Kim, Minneapolis-St. Paul and (ca. 1900) Brig. Gen. Lee. | Done.
The ratio was 1 : 2. | - She said nothing.
Yahoo! is a company. | So is eBay.
See "Nature" vol. 12, pp. 3-4, ed. Smith. | It is there.
Hello world
A heading\n | The text begins. | It goes on.
Line one without stop\n | line two in lower case
One.\n\n | Two.
""".strip().split("\n")

JAPANESE = r"""
今日は晴れだ。 | 明日は雨だ。
本当？ | うん！ | そう。
「行くよ。」と彼は言った。 | 私も行った。
「行くよ。寒いね。」 | 彼は笑った。
「行くよ」と言った。 | 「うん」と答えた。
『吾輩は猫である。名前はまだ無い。』は有名だ。 | 読んだ。
彼は（たぶん。）と言った。 | 来ない。
えっ！？ | そんな。
円周率は３．１４である。 | そうだ。
以上である． | 次に述べる．
待って……まだだ。 | いいよ。
ﾊﾝｶｸだ｡ | そうだ｡
第一章\n | 　吾輩は猫である。
「そう。」 | 「いや。」 | 彼は黙った。
バージョン2.0を使う。 | 速い。
""".strip().split("\n")

KOREAN = r"""
그는 갔다. | 그녀는 남았다.
정말? | 그래! | 좋다.
“하느님 감사합니다.” 라고 응답한다. | 끝났다.
"그렇다." | 그는 웃었다.
원주율은 3.14이다. | 그렇다.
조지 W. 부시 대통령이 왔다. | 그는 말했다.
2020년대에 추월했다. | iPhone은 비싸다.
그리스도의 몸. | 아멘.
제목\n | 본문이다.
X.509 시스템은 표준이다. | 널리 쓰인다.
""".strip().split("\n")

GOLD = [*ENGLISH, *JAPANESE, *KOREAN]
# Two sentences that stand right after each other without a space, which the marked line cannot
# show.
GOLD_WITHOUT_SPACE = {
    "本当?そうだよ。": ["本当?", "そうだよ。"],
    "갔다.그러나 왔다.": ["갔다.", "그러나 왔다."],
}


@pytest.mark.parametrize("marked", GOLD)
def test_gold(marked: str) -> None:
    marked = marked.replace("\\n", "\n")
    separator = "" if re.search(r"[ぁ-んァ-ヶ一-龥｡．]", marked) else " "
    sentences = [sentence.strip() for sentence in marked.split(" | ")]
    assert split_sentences(marked.replace(" | ", separator)) == sentences


@pytest.mark.parametrize(("text", "sentences"), GOLD_WITHOUT_SPACE.items())
def test_gold_without_space(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_the_gold_set_is_large() -> None:
    assert len(GOLD) >= 80


@pytest.mark.parametrize("text", ["", " ", "\n\n", "　\t"])
def test_nothing_gives_nothing(text: str) -> None:
    assert split_sentences(text) == []


def test_long_japanese_quotes_are_cut_inside() -> None:
    quote = "「" + "とても長い話である。" * 60 + "」"
    sentences = split_sentences(quote)
    assert len(sentences) > 10
    assert "".join(sentences) == quote


PIECES = st.sampled_from(
    [
        *"abzAZ 　\n\t.!?。！？｡．…'\"”’)]」』「『（）・、,-—1290가다요あ漢ｱéß",
        "Mr.",
        "U.S.",
        "e.g. ",
        "다.",
        "。」",
        "\u2028",
        "\r\n",
        "😀",
    ]
)


def letters(text: str) -> str:
    return "".join(text.split())


@pytest.mark.no_cover
@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES | st.text(max_size=3), max_size=60).map("".join))
def test_no_character_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert letters("".join(sentences)) == letters(text)
    assert all(
        sentence and sentence == sentence.strip() and "\n" not in sentence for sentence in sentences
    )


@example(".", " '。a")
@example(".e.g. 「", "a")
@example("A Co. (", "The")
@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join), st.lists(PIECES, max_size=40).map("".join))
def test_a_line_end_always_cuts(first: str, second: str) -> None:
    assert split_sentences(f"{first}\n{second}") == split_sentences(first) + split_sentences(second)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "unit",
    [
        "word ",
        "漢字",
        "x",
        "a, ",
        "あ、",
        "「ああ。",
        "(",
        "Mr. ",
        ". ",
        ".",
        "！",
        "다.",
        "\n",
        "　\n",
    ],
)
def test_giants_are_cut_and_take_linear_time(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    sentences = split_sentences(text)  # would take an hour if time grew with the square
    assert max(map(len, sentences), default=0) <= LONGEST_SENTENCE
    assert letters("".join(sentences)) == letters(text)


def test_a_line_that_begins_with_wide_spaces_and_a_stop() -> None:
    assert split_sentences("あ。\n　　. Abc def.") == ["あ。", ". Abc def."]
    assert letters("".join(split_sentences("　　. Abc"))) == ".Abc"


def test_giants_are_cut_at_white_space() -> None:
    words = "word " * 5000
    assert {word for sentence in split_sentences(words) for word in sentence.split()} == {"word"}


def test_real_text_is_split_as_expected(data_folder) -> None:
    """The mean length of sentences in each language is a cheap sign that no rule has begun to fire
    wrongly."""
    from bertworks.text.corpus import CorpusReader

    expected = {
        "en-wikipedia-8m.jsonl.gz": (115, 140),
        "ja-aozora-5m-chars.jsonl.gz": (33, 45),
        "ko-wikipedia-1m.jsonl.gz": (55, 70),
    }
    for name, (shortest, longest) in expected.items():
        texts = [
            document.text
            for _, document in zip(range(150), CorpusReader([data_folder / "text" / name]))
        ]
        sentences = [sentence for text in texts for sentence in split_sentences(text)]
        assert shortest < sum(map(len, sentences)) / len(sentences) < longest, name
        assert letters("".join(sentences)) == letters("".join(texts))
