"""Treebanks: what is a word, what is a tree, and where a bad one stands."""

import gzip
import random
from pathlib import Path

import pytest

from bertworks.datasets.treebank import read_treebank, read_trees
from bertworks.errors import BertworksError
from tests.support.treebanks import lines_of, random_sentence, write_treebank, write_trees

EXAMPLE = """\
# text = Vámonos al mar, dijo.
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t7\tccomp\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\tSpaceAfter=No
5.1\tél\tél\tPRON\t_\t_\t_\t_\t7:nsubj\t_
6\t,\t,\tPUNCT\t_\t_\t1\tpunct\t_\t_
7\tdijo\tdecir\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
8\t.\t.\tPUNCT\t_\t_\t7\tpunct\t_\t_

"""


@pytest.mark.parametrize("name", ["es.conllu", "es.conllu.gz"])
def test_ranges_and_empty_nodes_are_no_words(name: str, tmp_path: Path):
    data = EXAMPLE.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (sentence,) = read_trees(tmp_path / name)
    assert sentence.words == ("Vamos", "nos", "a", "el", "mar", ",", "dijo", ".")
    assert sentence.heads == (6, 0, 4, 4, 0, 0, -1, 6)
    assert [n for n, flag in enumerate(sentence.is_punctuation) if flag] == [5, 7]
    assert sentence.parts_of_speech[3:7] == ("DET", "NOUN", "PUNCT", "VERB")
    assert (sentence.root, sentence.where) == (6, f"{tmp_path / name}:3")


def test_what_is_written_is_read(tmp_path: Path):
    sentences = [random_sentence(random.Random(n)) for n in range(30)]
    read = list(read_trees(write_trees(tmp_path / "a.conllu", sentences)))
    assert [one._replace(where="") for one in read] == sentences


@pytest.mark.parametrize(
    ("number", "cell", "value", "message"),
    [
        (3, 6, "_", r"word 3, '\w+', has the head '_': expected a number from 0 \(the root\) to 5"),
        (3, 6, "6", "word 3, .* has the head '6'"),
        (3, 6, "3", "word 3, .* has the head '3'.* and not its own"),
        (3, 6, "-1", "word 3, .* has the head '-1'"),
        (3, 6, "٣", "word 3, .* has the head '٣'"),
        (3, 6, "0", "words 1, 3 have the head 0: a sentence has one root"),
        (1, 6, "2", "the heads lead from word 1 to 2 to 1: this is a cycle, not a tree"),
        (4, 6, "5", "the heads lead from word 4 to 5 to 4"),
        (2, 0, "7", "word 2 has the number '7'"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_line(
    number: int, cell: int, value: str, message: str, tmp_path: Path
):
    good = random_sentence(random.Random(0))
    chain = good._replace(words=tuple("abcde"), heads=(-1, 0, 1, 2, 3), parts_of_speech=("X",) * 5)
    path = write_trees(tmp_path / "a.conllu", [good, chain])
    lines = path.read_text().split("\n")
    first = len(good.words) + 3  # lines before the words of the second sentence
    cells = lines[first + number - 1].split("\t")
    cells[cell] = value
    lines[first + number - 1] = "\t".join(cells)
    path.write_text("\n".join(lines))
    with pytest.raises(BertworksError, match=message) as error:
        list(read_trees(path))
    assert error.value.where == f"{path}:{first + 1}"
    assert error.value.hint == "repair the tree, or remove the sentence"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("# sent_id = 1\n\n# sent_id = 2\n", "the file has no sentence"),
        ("1\ta\tX\t0\n2\tb\tX\t1\n", "has 10 cells between tabs, this one has 4"),
        (
            "1 a _ X _ _ 0 root _ _\n2 b _ X _ _ 1 dep _ _\n",
            "has 10 cells between tabs, this one has 1",
        ),
    ],
)
def test_files_that_are_no_treebank(content: str, message: str, tmp_path: Path):
    (tmp_path / "a.conllu").write_text(content)
    with pytest.raises(BertworksError, match=message):
        list(read_trees(tmp_path / "a.conllu"))


def test_a_table_is_no_treebank(tmp_path: Path):
    (tmp_path / "a.csv").write_text("text,label\ngood,pos\n")
    with pytest.raises(BertworksError, match="not a treebank"):
        list(read_trees(tmp_path / "a.csv"))


def test_the_parts_of_a_folder(tmp_path: Path):
    folder = write_treebank(tmp_path / "ud")
    (folder / "xx-ud-train.conllu").rename(folder / "xx-ud-train-a.conllu")
    write_trees(folder / "xx-ud-train-b.conllu", [random_sentence(random.Random(9))])
    write_trees(folder / "xx-ud-dev-test.conllu", [random_sentence(random.Random(9))])
    (folder / "README.txt").write_text("train on this")
    bank = read_treebank(folder)
    assert list(map(len, bank[:3])) == [41, 12, 12]
    assert bank.notes == [
        "train: xx-ud-train-a.conllu, xx-ud-train-b.conllu, 41 sentences",
        "dev: xx-ud-dev.conllu, 12 sentences",
        "test: xx-ud-test.conllu, 12 sentences",
        "not used, as their names have no part or several: xx-ud-dev-test.conllu",
    ]
    assert read_treebank(write_treebank(tmp_path / "two", test=0)).test == []


@pytest.mark.parametrize("part", ["train", "dev"])
def test_a_folder_without_a_part(part: str, tmp_path: Path):
    folder = write_treebank(tmp_path / "ud")
    (folder / f"xx-ud-{part}.conllu").rename(folder / "xx.conllu")
    with pytest.raises(
        BertworksError, match=f"no file has the part '{part}' in its name; there are .*xx.conllu"
    ) as error:
        read_treebank(folder)
    assert error.value.hint.startswith(
        "name a .conllu file, or a folder with files such as en-train.conllu"
    )


def test_a_folder_without_treebanks(tmp_path: Path):
    (tmp_path / "train.txt").write_text("a")
    with pytest.raises(BertworksError, match=r"there is no \.conllu file in this folder"):
        read_treebank(tmp_path)
    with pytest.raises(BertworksError, match="no such file"):
        read_treebank(tmp_path / "nowhere.conllu")


def test_one_file_is_divided(tmp_path: Path):
    sentences = [random_sentence(random.Random(n)) for n in range(30)]
    path = write_trees(tmp_path / "a.conllu", sentences)
    bank = read_treebank(path)
    assert bank == read_treebank(path)
    assert list(map(len, bank[:3])) == [24, 3, 3]
    assert sorted(one.where for part in bank[:3] for one in part) == sorted(
        one.where for one in read_trees(path)
    )
    write_trees(path, sentences[:9])
    with pytest.raises(BertworksError, match="9 sentences are too few"):
        read_treebank(path)


def test_real_trees(data_folder: Path):
    """Its own text is the oracle: words of a sentence are in its comment `# text`, in order."""
    path = data_folder / "probe" / "ud-english-ewt" / "dev.conllu.gz"
    texts = [
        line[9:]
        for line in gzip.decompress(path.read_bytes()).decode().split("\n")
        if line.startswith("# text = ")
    ]
    sentences = list(read_trees(path))
    assert len(sentences) == len(texts) == 2001
    joined = sum(
        "".join(sentence.words) == text.replace(" ", "") for sentence, text in zip(sentences, texts)
    )
    # the others have contractions, which are not written as their words
    assert joined > 0.95 * len(texts)


def test_lines_of_the_helper_are_conllu():
    assert all(line.count("\t") == 9 for line in lines_of(random_sentence(random.Random(0))))
