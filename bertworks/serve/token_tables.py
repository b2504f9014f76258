"""Read ids of tokens that clients send instead of texts.

What they mean, and the texts that they stand for.

Clients of OpenAI, LangChain among them, may send ids of OpenAI's vocabularies. A number does not
say which vocabulary it is from, so the option `--token-ids` does. The tables of these vocabularies
are read from the cache of the package tiktoken; nothing is fetched.
"""

import base64
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bertworks.errors import BertworksError, explain_os_errors, require

TokenIds = Literal["own", "cl100k_base", "o200k_base"]
# its sha1 is the name of the cached file
_ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
_LARGEST_TABLE = 1 << 24  # bytes; o200k_base has 3.6 million


# The sha256 of the files, as tiktoken compares them: other users may be able to write into the
# folder of the cache.
PUBLISHED_TABLES = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}


class TokenTable(NamedTuple):
    """The tokens of a vocabulary as bytes, by their ids."""

    tokens: Sequence[bytes]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of the ids of its tokens, each of which is one.

        A character may be cut into several tokens: their bytes are joined. What is left of a
        character that the first or the last token cuts is U+FFFD.
        """
        return b"".join(self.tokens[number] for number in ids).decode("utf-8", "replace")


def read_table(name: str) -> TokenTable:
    """Return the table of a vocabulary of OpenAI, from the cache of tiktoken.

    Raises:
        BertworksError: it is not there, or it is another file.
    """
    path = (
        _cache_folder()
        / hashlib.sha1(_ADDRESS.format(name).encode(), usedforsecurity=False).hexdigest()
    )
    hint = (
        f"load {name} with the package tiktoken, which saves it; TIKTOKEN_CACHE_DIR names the "
        "folder"
    )
    require(path.is_file(), f"the table of {name} is not in the cache of tiktoken", path, hint)
    with explain_os_errors(f"the table of {name} cannot be read", path, hint):
        require(
            path.stat().st_size <= _LARGEST_TABLE, f"the table of {name} is too large", path, hint
        )
        content = path.read_bytes()
    is_published = hashlib.sha256(content).hexdigest() == PUBLISHED_TABLES[name]
    require(
        is_published, f"this is not the published table of {name}: its sha256 differs", path, hint
    )
    tokens: list[bytes] = []
    try:
        for line in content.splitlines():  # the bytes of a token in base64, a space, its id
            token, number = line.split()
            if int(number) != len(tokens):
                raise ValueError(f"expected the id {len(tokens)}, not {int(number)}")
            tokens.append(base64.b64decode(token, validate=True))
    except ValueError as error:
        raise BertworksError(f"this is not a table of tokens: {error}", where=path) from error
    return TokenTable(tokens)


def _cache_folder() -> Path:
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    return Path(tempfile.gettempdir()) / "data-gym-cache"
