"""Uploads a model folder to the Hugging Face hub.

Only safetensors, configuration, tokenizer and card are sent, in one commit, after the folder was
read as a model. A dry run does not use the network.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.checkpoints.resolve import MODEL_FILES, split_files
from bertworks.errors import BertworksError, UsageError, expect, one_line, quoted, require
from bertworks.events import Event, JsonObject
from bertworks.io.inputs import as_path

_CARD = "README.md"
_LONGEST_CARD = 1 << 20  # bytes


def push(
    folder: str | Path,
    repository: str,
    *,
    dry_run: bool = False,
    private: bool = False,
    licence: str | None = None,
) -> Iterator[Event]:
    """Upload a model folder to the hub as `owner/name`, in one commit.

    Creates the repository if needed.

    Args:
        folder: a model folder on this machine.
        dry_run: only report what would be sent, with the whole card. Needs no network and no token.
        private: make a new repository private.
        licence: license identifier of the hub, such as mit, for the card. The card in the folder
            does not change.

    Raises:
        UsageError: not a name of a repository.
        BertworksError: not a complete model; links; no card; no token, no permission or no network.
    """
    from huggingface_hub import ModelCard
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    folder = as_path(folder)
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(one_line(error), where=repository, hint="give owner/name") from None
    expect(
        "/" in repository,
        "the repository has no owner",
        where=repository,
        hint=f"give owner/{repository}",
    )
    model = ModelFolder(folder)
    model.load()
    model.refuse_nested()
    names, unsent = split_files(folder, MODEL_FILES)
    converting = f"bertworks convert {quoted(folder)} -o ANOTHER-FOLDER"
    what = "links are not sent: they may lead to private files"
    hint = f"copy the model to a new folder: {converting}"
    for file in [folder / name for name in names]:
        require(not file.is_symlink() and not file.parent.is_symlink(), what, file, hint)
    files = {name: (folder / name).stat().st_size for name in names}
    require(
        files.get(_CARD, _LONGEST_CARD + 1) <= _LONGEST_CARD,
        f"there is no model card ({_CARD})",
        folder,
        f"write one, or start from that of `{converting}`",
    )
    path = folder / _CARD
    try:
        text = path.read_text(encoding="utf-8")
        card: Any = ModelCard(text)  # its data accept any name
        data = card.data.to_dict()
    except Exception as error:  # yaml has its own exceptions
        raise BertworksError(
            f"the first lines of the card, between ---, are not YAML: {one_line(error)}", where=path
        ) from None
    if licence is not None and data.get("license") != licence:
        card.data.license = licence
        text = str(card)
        data = card.data.to_dict()
    missing = [name for name in ("license", "language", "library_name") if not data.get(name)]
    if missing:
        yield Event(
            "note", f"the card lacks {', '.join(missing)} (between the first two lines of ---)"
        )
    if not text.partition("\n# ")[2].strip():
        title = repository.partition("/")[2]
        yield Event("note", f"the card has no heading, such as: # {title}")
    text = text.rstrip("\n") + "\n"
    files[_CARD] = len(text.encode())
    width = max(map(len, files))
    lines = [f"{repository}: {len(files)} files, {sum(files.values()) / 1e6:,.1f} MB"]
    lines += [f"  {name:<{width}}  {size:>13,} bytes" for name, size in files.items()]
    if unsent:
        lines.append(f"not sent: {', '.join(unsent)}")
    fields: JsonObject = {
        "repository": repository,
        "files": files,
        "stays": unsent,
        "card": text,
    }
    if dry_run:
        lines += [
            "",
            "--- the card ---",
            text.rstrip(),
            "--- end of the card ---",
            "",
            "dry run: nothing was sent",
        ]
        yield Event("done", "\n".join(lines), fields | {"sent": False})
        return
    yield Event("note", "\n".join([*lines, "sending ..."]))
    content: dict[str, Path | bytes] = {name: folder / name for name in files}
    content[_CARD] = text.encode()
    url = _send(repository, content, private=private)
    yield Event("done", f"sent: {url}", fields | {"sent": True, "url": url})


def _send(repository: str, content: Mapping[str, Path | bytes], *, private: bool) -> str:
    """Create the repository if needed, make one commit, and return its URL."""
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    require(
        get_token(),
        "this machine has no token for the Hugging Face hub",
        repository,
        "hf auth login (or set HF_TOKEN), with a token with write access",
    )
    try:
        api = HfApi(library_name="bertworks")
        api.create_repo(repository, private=private, exist_ok=True)
        operations = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=file)
            for name, file in content.items()
        ]
        message = "Upload with bertworks"
        commit = api.create_commit(repository, operations, commit_message=message)
        return str(commit.commit_url)
    except OfflineModeIsEnabled:
        what = "HF_HUB_OFFLINE is set: the hub is not used"
        hint = "unset HF_HUB_OFFLINE; or --dry-run"
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        what = f"the hub refused the upload ({status}): {one_line(error.server_message or error)}"
        hint = "hf auth login with a token with write access"
        hint = hint if status in (401, 403, 404) else "run the same command again later"
    except Exception as error:  # the HTTP library may change
        what = f"the hub cannot be reached: {type(error).__name__}: {one_line(error)}"
        hint = "connect to the network and run the same command again; or --dry-run"
    raise BertworksError(what, where=repository, hint=hint)
