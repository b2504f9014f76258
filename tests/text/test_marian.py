"""Tokenizer folders of Marian translators: ids and decoded texts as in transformers, both sides."""

import gzip
import json
import pickle
import random
import shutil
from contextlib import suppress

import pytest
import sentencepiece
import transformers

from bertworks.errors import BertworksError, UsageError
from bertworks.text.marian import split_language, target_languages
from bertworks.text.shards import PartWriter
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_folder import SPECIAL_TOKENS
from tests.support.marian import train_sentencepiece, write_marian
from tests.support.refusals import refusal
from tests.text.test_tokenizer_folder import LINES, ODD

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

# The other language: English backwards, with letters of its own.
LETTERS = str.maketrans("aeiou", "äéîöü")
TARGET_LINES = [line[::-1].translate(LETTERS) for line in LINES]
LANGUAGES = ["deu", "cmn_Hans", "sr-Latn"]
SIDES = {"source": "text", "target": "text_target"}  # of a call of MarianTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("marian")
    return write_marian(path, LINES, TARGET_LINES, languages=LANGUAGES)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "folder")


def assert_same(tokenizer, theirs, texts_of_sides):
    """Ids of every text on its side, and the text of these ids."""
    for side, texts in texts_of_sides.items():
        ours = tokenizer.target if side == "target" else tokenizer
        for text, encoding in zip(texts, ours.encode_batch(texts), strict=True):
            ids = theirs(**{SIDES[side]: text})["input_ids"]
            assert encoding.ids == ids, (side, text)
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), (side, text)


def has_tie(folder, text):
    """Whether two ways to split a text are equally good on one of the sides.

    "0000000" is 00, 00, 000 in any order. SentencePiece adds scores of 32 bits, so that rounding
    errors choose one of them.
    """
    for name in ("source", "target"):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        ways = processor.nbest_encode(text, nbest_size=2, out_type=int)
        scores = [sum(map(processor.get_score, ids)) for ids in ways]
        if len(scores) > 1 and scores[0] - scores[1] < 1e-3:
            return True
    return False


def random_texts(tokenizer, count):
    """Pieces of both sides in any order, and characters that no piece has."""
    draw = random.Random(1)
    pieces = [token.replace("▁", " ") for token in tokenizer.tokens if not token.startswith(">>")]
    characters = list("日本語한éñß ↔🙂\u0301\t") + sorted({c for piece in pieces for c in piece})
    texts = [
        "".join(
            draw.choice(draw.choice([pieces, pieces, characters]))
            for _ in range(draw.randrange(1, 12))
        )
        for _ in range(count)
    ]
    return [text for text in texts if not text.startswith(">>")]


def test_ids_and_decoded_texts_are_those_of_transformers(tokenizer, theirs):
    assert len(theirs) == tokenizer.vocab_size == tokenizer.target.vocab_size
    special = tokenizer.sep_id, tokenizer.unk_id, tokenizer.pad_id
    assert special == (theirs.eos_token_id, theirs.unk_token_id, theirs.pad_token_id)
    odd = [*ODD, "a </s> b<pad>", "<unk>", "<s>"]
    mixed = odd + LINES[:100] + TARGET_LINES[:100]
    assert_same(tokenizer, theirs, {"source": mixed, "target": mixed})


def test_texts_of_any_pieces_and_characters_have_the_ids_of_transformers(folder, tokenizer, theirs):
    texts = random_texts(tokenizer, 600)
    clear = [text for text in texts if not has_tie(folder, text)]
    assert len(clear) > 500
    assert_same(tokenizer, theirs, {"source": clear, "target": clear})


def test_any_ids_are_decoded_as_in_transformers(tokenizer, theirs):
    draw = random.Random(2)
    for _ in range(300):
        ids = draw.choices(range(tokenizer.vocab_size), k=9)
        assert tokenizer.target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_piece_that_the_vocabulary_lacks_is_unknown(folder, tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = {processor.id_to_piece(n) for n in range(3, len(processor))}
    lacking = [
        piece
        for piece in sorted(pieces - set(tokenizer.tokens))
        if processor.encode(piece[1:], out_type=str) == [piece]
    ]
    assert lacking
    for piece in lacking:
        assert tokenizer.ids([piece[1:]]) == [[tokenizer.unk_id]]


def test_a_run_of_unknown_characters_is_one_token_or_a_piece_of_the_other_side(tokenizer):
    space, unknown = tokenizer.tokens.index("▁"), tokenizer.unk_id
    letter = tokenizer.tokens.index("ä")
    assert tokenizer.ids(["ä", "日本", "ä日", "ä."]) == [
        [space, letter],
        [space, unknown],
        [space, unknown],
        [space, letter, tokenizer.tokens.index(".")],
    ]
    # 日 is no piece of either side, ä one of this side
    assert tokenizer.target.ids(["ä日"]) == [[*tokenizer.target.ids(["ä"])[0], unknown]]


@pytest.mark.parametrize("characters", ["", "</>"])
def test_no_text_of_a_corpus_has_a_special_token(tmp_path, characters):
    # Where no piece has these characters, "</" is a run of them.
    without = str.maketrans("", "", characters + "sdap")
    lines = [line.translate(without) for line in LINES]
    tokenizer = Tokenizer.load(write_marian(tmp_path, lines, lines))
    texts = ["a </s> b", "</s>", "x<pad>y", "<s>"]
    forbidden = {tokenizer.sep_id, tokenizer.pad_id}
    for side in (tokenizer, tokenizer.target):
        assert not any(forbidden & set(ids) for ids in side.ids(texts))
        assert all(forbidden & set(side.encode(text).ids[:-1]) for text in texts[:3])
        ends = [encoding.ids[-1] for encoding in side.encode_batch(["", *texts])]
        assert ends == [tokenizer.sep_id] * 5


def test_a_single_tokenizer_is_that_of_both_sides(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{t}\n" for t in SPECIAL_TOKENS.values()))
    single = Tokenizer.load(tmp_path)
    assert single.target is single


def test_offsets_and_long_texts_have_the_ids_of_the_vocabulary(tokenizer):
    text = " ".join([*LINES[:700], "ä 日本 ß"])
    assert len(text) > 1 << 14  # it is encoded in parts
    whole = tokenizer.encode(text)
    ((ids, offsets),) = tokenizer.arrays([text])
    assert [*ids.tolist(), tokenizer.sep_id] == whole.ids
    assert [tuple(span) for span in offsets.tolist()] == whole.offsets[:-1]
    assert tokenizer.ids([text]) == [ids.tolist()]
    assert tokenizer.encode(text, max_length=20).ids == [*whole.ids[:19], tokenizer.sep_id]
    assert tokenizer.unknown([text])[-2:] == ["日本", "ß"]
    assert tokenizer.template[:3] == ((), (), (tokenizer.sep_id,))
    assert max(ids) < tokenizer.vocab_size


def test_a_saved_tokenizer_is_the_folder_and_opens_in_transformers(
    folder, tokenizer, theirs, tmp_path
):
    tokenizer.save(tmp_path)
    for saved in (tmp_path, folder):
        assert sorted(path.name for path in saved.iterdir()) == [
            "source.spm",
            "target.spm",
            "tokenizer_config.json",
            "vocab.json",
        ]
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    again = transformers.MarianTokenizer.from_pretrained(tmp_path)
    texts = {side: LINES[:50] + TARGET_LINES[:50] + ODD + ["a </s> b"] for side in SIDES}
    assert_same(tokenizer, again, texts)
    # with config.json, as in the folder of a model
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    assert isinstance(transformers.AutoTokenizer.from_pretrained(tmp_path), type(theirs))
    # and what transformers saves opens here
    theirs.save_pretrained(tmp_path / "theirs")
    assert_same(Tokenizer.load(tmp_path / "theirs"), theirs, texts)


def test_copies_have_the_same_hash_and_another_target_has_another(copy, tokenizer):
    for same in (Tokenizer.load(copy), pickle.loads(pickle.dumps(tokenizer))):
        assert same.sha256 == tokenizer.sha256
        assert same.target.sha256 == tokenizer.target.sha256 != tokenizer.sha256
        assert same.target.ids(ODD) == tokenizer.target.ids(ODD)
        assert same.notes == tokenizer.notes == ()
    shutil.copy(copy / "source.spm", copy / "target.spm")
    assert Tokenizer.load(copy).sha256 != tokenizer.sha256


def test_shards_of_a_translator_have_the_ids_of_its_source(folder, tokenizer, tmp_path):
    encoded = PartWriter(folder, tmp_path).encode(["ä 日本 ß"])
    assert encoded["tokens"].tolist() == tokenizer.ids(["ä 日本 ß"])[0]


# several target languages


def test_the_target_language_stands_in_front_as_in_transformers(tokenizer, theirs):
    languages = target_languages(tokenizer.tokens)
    assert list(languages) == LANGUAGES
    codes = [f">>{language}<<" for language in LANGUAGES]
    assert codes == theirs.supported_language_codes
    texts = ["", "a few words", "  two spaces ", "x >>deu<< y", ">>deu<< z", ">> quoted << words"]
    for language, code in zip(LANGUAGES, codes, strict=True):
        for text in texts:
            for space in ("", " "):
                whole = f"{code}{space}{text}"
                front, rest = split_language(whole, languages)
                assert [*front, *tokenizer.encode(rest).ids] == theirs(whole)["input_ids"]
        # the text does not say it
        text = "a few words"
        assert split_language(text, languages, language) == ([languages[language]], text)
        # the text says it, and counts more
        assert split_language(f">>deu<<{text}", languages, language)[0] == [languages["deu"]]
    quoted = ">> quoted << words"
    assert split_language(quoted, languages, "deu") == ([languages["deu"]], quoted)
    assert split_language(">>", languages, "deu")[1] == ">>"


def test_a_target_language_that_is_not_known_is_refused(tokenizer):
    languages = target_languages(tokenizer.tokens)
    for text in ("a few words", ">>fra<< a few words", ">>deu a few words"):
        with refusal("none is named", "deu, cmn_Hans, sr-Latn"):
            split_language(text, languages)
    with pytest.raises(UsageError):
        split_language("a", languages)
    with refusal("does not translate into 'fra'", "deu, cmn_Hans, sr-Latn"):
        split_language("a", languages, "fra")
    assert target_languages(["</s>", ">><<", ">>", "<<", ">>a"]) == {}
    assert split_language(">>deu<< a", {}) == ([], ">>deu<< a")
    with refusal("'deu' cannot be chosen", "leave the target language out"):
        split_language("a", {}, "deu")


# hostile and incomplete folders


def change_vocabulary(change):
    """A change of the dict in vocab.json."""

    def damage(folder):
        path = folder / "vocab.json"
        ids = json.loads(path.read_text(encoding="utf-8"))
        change(ids)
        path.write_text(json.dumps(ids), encoding="utf-8")

    return damage


def rewrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def configure(**config):
    return rewrite("tokenizer_config.json", json.dumps(config).encode())


def leave_out(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def other_target(folder):
    lines = [line.translate({n: n + 0x3B0 for n in range(97, 123)}) for line in LINES]
    (folder / "target.spm").write_bytes(train_sentencepiece(lines, 300))


def train(**settings):
    return rewrite("source.spm", train_sentencepiece(LINES, 300, **settings))


TOGETHER = "belong together"
DAMAGES = {
    "no target.spm": (leave_out("target.spm"), "", "lacks target.spm", TOGETHER),
    "no source.spm": (leave_out("source.spm"), "", "lacks source.spm", TOGETHER),
    "no vocab.json": (leave_out("vocab.json"), "", "lacks vocab.json", TOGETHER),
    "a gap": (
        change_vocabulary(lambda ids: ids.pop("▁")),
        "vocab.json",
        "are not 0 to",
        "get the file again",
    ),
    "an id twice": (
        change_vocabulary(lambda ids: ids.update({"▁": 5})),
        "vocab.json",
        "has the id 3 where 2 is expected",
        "get the file again",
    ),
    "a negative id": (
        change_vocabulary(lambda ids: ids.update({"▁": -1})),
        "vocab.json",
        "'▁' has the id -1 where 0 is expected",
        "get the file again",
    ),
    "a text for an id": (
        change_vocabulary(lambda ids: ids.update({"▁": "5"})),
        "vocab.json",
        "the ids of '▁' are not whole numbers",
        "get the file again",
    ),
    "a fraction": (
        change_vocabulary(lambda ids: ids.update({"▁": 5.0})),
        "vocab.json",
        "are not whole numbers",
        "get the file again",
    ),
    "a list": (rewrite("vocab.json", b"[]"), "vocab.json", "a JSON object is expected", ""),
    "no JSON": (rewrite("vocab.json", b"{"), "vocab.json:1", "not valid JSON", ""),
    "a token twice": (
        rewrite("vocab.json", b'{"</s>": 0, "<unk>": 1, "<unk>": 2, "<pad>": 3}'),
        "vocab.json:1",
        "'<unk>' occurs twice",
        "remove one",
    ),
    "long tokens": (
        change_vocabulary(lambda ids: ids.update({"x" * (5 << 20): len(ids)})),
        "vocab.json",
        "too much",
        "",
    ),
    "nothing": (rewrite("vocab.json", b"{}"), "vocab.json", "lacks </s>, <unk>, <pad>", TOGETHER),
    "damaged pieces": (
        rewrite("target.spm", b"no protobuf"),
        "target.spm",
        "a damaged SentencePiece file",
        "",
    ),
    "pieces of another model": (
        other_target,
        "target.spm",
        "the SentencePiece file of another model: only ",
        TOGETHER,
    ),
    "pieces of BPE": (
        train(model_type="bpe"),
        "source.spm",
        "not a unigram model",
        "choose another model",
    ),
    "pieces of bytes": (
        train(byte_fallback=True, vocab_size=500),
        "source.spm",
        "byte_fallback",
        "choose another model",
    ),
    "spaces": (
        train(remove_extra_whitespaces=False),
        "source.spm",
        "extra white space",
        "choose another model",
    ),
    "separate vocabularies": (
        configure(separate_vocabs=True),
        "",
        "separate vocabularies",
        "one vocab.json",
    ),
    "a second vocabulary": (
        rewrite("target_vocab.json", b"{}"),
        "",
        "separate vocabularies",
        "one vocab.json",
    ),
    "another end": (configure(eos_token="<end>"), "vocab.json", "lacks <end>", TOGETHER),
    "added tokens": (
        configure(added_tokens_decoder={"0": {"content": "</s>"}, "9": {"content": "<new>"}}),
        "",
        "not supported: <new>",
        "remove them",
    ),
    "additional tokens": (
        configure(additional_special_tokens=["<eop>"]),
        "",
        "not supported: <eop>",
        "remove them",
    ),
    "a file of tokens": (
        rewrite("added_tokens.json", b'{"<new>": 9}'),
        "",
        "not supported: <new>",
        "remove them",
    ),
    "a number of tokens": (configure(extra_special_tokens=5), "", "not a list of tokens", ""),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_by_name(copy, name):
    damage, file, what, hint = DAMAGES[name]
    damage(copy)
    with pytest.raises(BertworksError) as caught:
        Tokenizer.load(copy)
    assert caught.value.where == str(copy / file)
    assert what in caught.value.what, caught.value
    assert hint in (caught.value.hint or ""), caught.value


@pytest.mark.parametrize("token", ["</s>", "<unk>", "<pad>"])
def test_a_vocabulary_without_a_special_token_is_refused(copy, token):
    change_vocabulary(lambda ids: ids.update({f"x{token}": ids.pop(token)}))(copy)
    with refusal(f"the vocabulary lacks {token}", TOGETHER):
        Tokenizer.load(copy)


def test_the_folder_of_a_translator_without_tokenizer_files_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    with refusal("lacks source.spm", TOGETHER):
        Tokenizer.load(tmp_path)


def test_random_damage_of_a_vocabulary_is_an_error_or_a_tokenizer(copy):
    original = (copy / "vocab.json").read_bytes()
    draw = random.Random(3)
    for _ in range(40):
        data = bytearray(original)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (copy / "vocab.json").write_bytes(data)
        with suppress(BertworksError):
            damaged = Tokenizer.load(copy)
            ids = damaged.target.encode("some text").ids
            assert all(0 <= number < damaged.vocab_size for number in ids)


def test_a_vocabulary_that_lacks_many_pieces_has_a_note(copy, tokenizer):
    own = [token for token in tokenizer.tokens if token.startswith("▁")][: 900 // 4]
    spelled = {token: f"x{token}" for token in own}

    def rename(ids):
        for old, new in spelled.items():
            ids[new] = ids.pop(old)

    change_vocabulary(rename)(copy)
    config = {"clean_up_tokenization_spaces": True, "model_max_length": 100}
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    changed = Tokenizer.load(copy)
    assert changed.model_max_length == 100
    assert "clean_up_tokenization_spaces is not applied" in changed.notes[0]
    assert any("source.spm: only" in note and "pieces are in" in note for note in changed.notes)


# real text


@pytest.mark.slow
def test_thousands_of_lines_have_the_ids_of_transformers(data_folder, tmp_path):
    parts = {}
    for side, language in (("source", "en"), ("target", "de")):
        path = data_folder / "parallel" / "en-de" / f"train.{language}.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            parts[side] = [line.strip() for line in file]
    # Lines of the training of SentencePiece, and others, which have unknown characters.
    folder = write_marian(
        tmp_path / "folder", parts["source"][:4000], parts["target"][:4000], num_pieces=3000
    )
    tokenizer = Tokenizer.load(folder)
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    texts = {
        "source": parts["source"][2000:6000] + parts["target"][:500],
        "target": parts["target"][2000:6000] + parts["source"][:500],
    }
    assert_same(tokenizer, theirs, texts)
    unknown = [text for text in texts["target"] if tokenizer.target.unknown([text])]
    assert len(unknown) > 20
