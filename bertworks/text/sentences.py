"""The text of a document -> its sentences, by rules that look at characters: one function for every language.

It is not a statistical model and needs no training: it errs on the side of too few cuts (after an abbreviation that may
also end a sentence, say), because a pair of sentences made of three is as good an example, and half a sentence is not.
"""

import re

from bertworks.text.wrapping import cut_text

LONGEST_SENTENCE = 4000  # characters; what is longer (tables, text without stops) is cut at white space
_LONGEST_QUOTE = 300  # characters; longer Japanese quotes are cut inside

_CLOSERS = r"\"'”’»›)\]}*_」』）】〉》〕］｝"
_OPENERS = "\"'“‘«‹„‚([{¿¡*_-–—「『（【〈《〔［｛・"
# A line's end, or a stop with the marks after it, and white space. It matches wherever its first character does, and
# the search goes on behind it, so that it never goes over the same characters twice; one class at the front is three
# times as fast as two.
_STOP = re.compile(rf"[\n.!?…।؟۔。！？｡．](?:(?<=\n)|[.!?…。！？｡．{_CLOSERS}]*(?:\[\d{{1,3}}\])*)\s*")
_HALF_WIDTH = ".!?…।؟۔"
_WORD = re.compile(r"[^\W\d_]+")
_JOINTS = re.compile(r"[-–—/(\[\"'“‘«„]+")  # before an abbreviation: Minneapolis-St. Paul, (ca. 1900)
_ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}|Ph\.D|Sc\.D|Ed\.D|Pharm\.D")
_ENUMERATOR = re.compile(r"\d{1,3}|[IVXLC]{1,6}|[ivx]{1,5}|\d{1,3}(?:\.\d{1,3})+")
# Where a Korean sentence goes on after a quote that ended with a stop: “…….” 라고 말했다.
_QUOTATIVE = re.compile(r"(?:이?라[고며는던]|이?란|하[고며는였]|이?었|였|했|고|며|[은는이가을를와과도의로])(?![.!?])")
# Where a Japanese sentence goes on after a quote that ended with a stop: 「……。」と言った。
_CONTINUATION = re.compile(r"[とがはにをもので、，などやへ]|って|から|まで|だけ|より|か[、。]|[)）」』】〉》〕］]")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never the end of a sentence.
_TITLES = _words(
    """Mr Mrs Ms Mx Dr Drs Prof Gen Gens Col Lt Capt Cpt Sgt Maj Brig Cmdr Cdr Cpl Pvt Adm Rev Revd Hon Pres Gov Sen
    Rep Supt Insp Messrs Mme Mmes Mlle Mlles MM Sra Srta Dra Sig Dott Hr Frl Herr Mgr Msgr Fr Br Bro Mt Ft Cols
    Pfc Smt Ste Sta Bl Skt MR MRS DR e.g i.e E.g I.e eg ie cf Cf viz vs Vs bzw z.B d.h u.a usw p.ex Nr Abb vgl Ud
    Uds"""
)
# The end of a sentence only where a word follows that begins sentences and is no name.
_ABBREVIATIONS = _words(
    """Inc Ltd Co Corp Cos Bros Mfg etc Etc Jr Sr Esq St Sts Ave Blvd Rd Sq Dept Univ Assn Assoc Inst Natl Intl Govt
    al ed eds trans vol vols Vol Vols fig figs Fig Figs pp chap Chap approx ca ft lb lbs oz sq est incl excl misc
    orig spp subsp var cv Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Calif Conn Fla Ga Ky Md Mich Minn Okla
    Pa Tenn Tex Va Vt Wis Ariz Ala Ark Colo Mass Neb Nev Ore Wash Rs Cie resp dgl ggf env Ph Op Lib Cod Gal Cor
    Deut Matt"""
)
# Followed by a number they are abbreviations, otherwise perhaps words.
_BEFORE_NUMBERS = _words(
    """No Nos no nos p pp P Pp c ca art Art Arts sec Sec Secs ch Ch pt Pt Pts op ver v V par para Para paras app App
    cat Cat ser Ser eq Eq Eqs ex Ex bk Bk col n r b d fl m s f § Nr nr tel Tel ext Ext min max Ps Pss Jer Ecc Ep"""
)
_STARTERS = _words(
    """The It He She They We You I This That These Those There Here In On At By For From With As After Before During
    Since While When Where What Who Why How If But And Or Yet However Although Though Because Its His Her Their
    Our Some Many Most Several Both Each Other Another Such Also Then Thus Therefore Furthermore Moreover Later
    Now Once Under Until Unlike According Despite Not One Two To Of Nor Hence Instead Is Are Was Were Did Do Does
    Der Die Das Er Sie Es Im Ein Eine Und Aber Wir Ich Le Les Il Elle Une En El Los Una"""
)
_GERMAN_ORDINALS = _words(
    """Januar Jänner Februar März April Mai Juni Juli August September Oktober November Dezember Jahrhundert
    Jahrhunderts Jahrhunderten Jh Klasse Auflage Bundesliga Liga Weltkrieg"""
)


def split_sentences(text: str) -> list[str]:
    """Cut a document into sentences, stripped of white space around them and never empty.

    Joined again they hold every character of the text but white space, in order. A line's end always ends a sentence,
    so headings stand alone; sentences longer than LONGEST_SENTENCE are cut at white space. Time is linear.
    """
    text = text.strip()  # so that no sentence begins with white space: each match takes what follows it
    sentences = []
    start = position = 0
    while match := _STOP.search(text, position):
        stop, end = match.span()
        position = end
        mark = text[stop]
        if mark == "\n":
            pass
        elif stop - start < 2 and not text[start:stop].isalnum() and "\n" not in text[stop:end]:
            continue  # no sentence of punctuation alone: it begins the next one
        elif not (_ends_half_width if mark in _HALF_WIDTH else _ends_full_width)(text, start, stop, end):
            continue
        if sentence := text[start:end].strip():
            sentences.append(sentence)
        start = end
    if sentence := text[start:].strip():
        sentences.append(sentence)
    if max(map(len, sentences), default=0) > LONGEST_SENTENCE:
        marks = (" ", "　", "\t", "、", ",")
        pieces = (piece.strip() for sentence in sentences for piece in cut_text(sentence, LONGEST_SENTENCE, *marks))
        return list(filter(None, pieces))
    return sentences


def _ends_half_width(text: str, start: int, stop: int, end: int) -> bool:
    """Whether a sentence that begins at `start` ends with the stop in `text[stop:end]`, white space included."""
    if end == len(text):
        return True
    following = text[end]
    if not text[end - 1].isspace():
        return _ends_without_space(text, stop, end)
    if "\n" in text[stop:end]:
        return True
    if not following.isalnum():
        following = _first_letter(text, end)
    hangul = _is_hangul(text[stop - 1]) if stop else False
    if following.islower() and not hangul:
        return False
    if hangul:
        quoted = text[stop:end].rstrip()[-1] in "\"'”’»」』》〉"
        return not (quoted and _QUOTATIVE.match(text, end))
    if text[stop] != "." or text[stop + 1] == ".":
        return True
    return not _is_abbreviation(text, start, stop, end, following)


def _is_abbreviation(text: str, start: int, stop: int, end: int, following: str) -> bool:
    """Whether the full stop at `stop` belongs to the word before it only.

    Args:
        following: the first letter or digit after the white space.
    """
    begin = max(text.rfind(" ", max(start, stop - 24), stop) + 1, start)
    word = text[begin:stop]
    if begin == start:
        word = word.rsplit(None, 1)[-1] if word else ""  # other white space may stand before it
        if _ENUMERATOR.fullmatch(word):
            return True
    if not word.isalnum():
        word = _JOINTS.split(word)[-1]
    if word in _TITLES:
        return True
    number_follows = following.isdecimal()
    if number_follows and word in _BEFORE_NUMBERS:
        return True
    if (
        word in _ABBREVIATIONS
        or (len(word) == 1 and word.lower() != word.upper())
        or ("." in word and _ACRONYM.fullmatch(word))
    ):
        return number_follows or _next_word(text, end) not in _STARTERS
    return word.isdecimal() and _next_word(text, end) in _GERMAN_ORDINALS


def _ends_without_space(text: str, stop: int, end: int) -> bool:
    """Stops that no space follows: Korean and Japanese sentences typed without one, not decimals or addresses."""
    before, after = text[stop - 1] if stop else "", text[end]
    if _is_hangul(before) and _is_hangul(after):
        return stop >= 2 and _is_hangul(text[stop - 2]) and before in "다요죠까네라지군음임" and text[stop] != "…"
    return text[stop] in "!?" and _is_unspaced(before) and _is_unspaced(after) and not _CONTINUATION.match(text, end)


def _ends_full_width(text: str, start: int, stop: int, end: int) -> bool:
    if end == len(text) or "\n" in text[stop:end]:
        return True
    if text[stop] == "．" and not (stop and _is_unspaced(text[stop - 1]) and not text[stop - 1].isdecimal()):
        return False  # a decimal or an enumeration: ３．１４
    if end - start <= _LONGEST_QUOTE and _is_inside_quote(text, start, end):
        return False
    closed = text[end - 1] not in "。！？｡．"
    return not (closed and not text[end - 1].isspace() and _CONTINUATION.match(text, end))


def _is_inside_quote(text: str, start: int, end: int) -> bool:
    return any(
        text.count(opening, start, end) > text.count(closing, start, end)
        for opening, closing in ("「」", "『』", "（）")
    )


def _first_letter(text: str, position: int) -> str:
    """The first character of the line from `position` on that is not an opening mark; at most a few are skipped."""
    for character in text[position : position + 5].partition("\n")[0]:
        if character not in _OPENERS and not character.isspace():
            return character
    return ""


def _next_word(text: str, position: int) -> str:
    """The first word of the line from `position` on, if it begins soon."""
    match = _WORD.search(text[position : position + 20].partition("\n")[0])
    return match[0] if match else ""


def _is_hangul(character: str) -> bool:
    return "가" <= character <= "힣"


def _is_unspaced(character: str) -> bool:
    """Kana, Chinese characters and their punctuation: scripts without spaces between words."""
    return "\u3000" <= character <= "\u9fff" or "\uff01" <= character <= "\uff9f"
