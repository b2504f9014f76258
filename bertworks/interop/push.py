"""A model folder -> a repository on the Hugging Face hub: what would go, what stays, what the card says; then it goes.

Only safetensors, configuration, tokenizer and card are ever sent, all in one commit, and only after the folder was read
as a model. The network is touched last, and not at all in a dry run.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.resolve import MODEL_DOCUMENTS
from bertworks.checkpoints.sentence_transformers import refuse_nested
from bertworks.errors import BertworksError, UsageError
from bertworks.events import Event

_CARD = "README.md"
_SENT = re.compile(
    r"config\.json|task\.json|model\.safetensors|model-\d{5}-of-\d{5}\.safetensors|model\.safetensors\.index\.json"
    r"|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|vocab\.txt"
    r"|modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json|\d_[A-Z]\w{0,30}/(config\.json|model\.safetensors)"
    rf"|{'|'.join(map(re.escape, MODEL_DOCUMENTS))}"
)
_LONGEST_CARD = 1 << 20  # bytes


@dataclass(frozen=True)
class _Plan:
    files: dict[str, int]  # bytes
    stays: list[str]
    card: str
    notes: list[str]


def push(
    folder: str | Path, repository: str, *, dry_run: bool = False, private: bool = False, licence: str | None = None
) -> Iterator[Event]:
    """Send a model folder to the hub as `owner/name`, in one commit; the repository is made if need be.

    Args:
        folder: a model folder on this machine.
        dry_run: only say what would be sent, with the whole card. Needs no network and no token.
        private: whether a repository that is made now is for its owner alone.
        licence: an identifier of the hub's, such as mit, that the card is to name. The folder's own card stays.

    Raises:
        UsageError: no such name of a repository.
        BertworksError: not a whole model; links in it; no card; no token, no permission or no network.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    folder = Path(folder)
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(str(error).splitlines()[0], where=repository, hint="give owner/name") from None
    if "/" not in repository:
        raise UsageError("a repository has an owner", where=repository, hint=f"give owner/{repository}")
    load_model(folder)
    refuse_nested(folder)
    plan = _planned(folder, repository, licence)
    for note in plan.notes:
        yield Event("note", note)
    width = max(map(len, plan.files))
    listed = [f"  {name:<{width}}  {size:>13,} bytes" for name, size in plan.files.items()]
    total = sum(plan.files.values())
    lines = [f"{repository}: {len(plan.files)} files, {total / 1e6:,.1f} MB", *listed]
    lines += [f"stays here: {', '.join(plan.stays)}"] * bool(plan.stays)
    fields: dict[str, Any] = {"repository": repository, "files": plan.files, "stays": plan.stays, "card": plan.card}
    if dry_run:
        lines += [
            "",
            "--- the card ---",
            plan.card.rstrip(),
            "--- end of the card ---",
            "",
            "a dry run: nothing was sent",
        ]
        yield Event("done", "\n".join(lines), fields | {"sent": False})
        return
    yield Event("note", "\n".join([*lines, "sending ..."]))
    where = _send(folder, repository, plan, private=private)
    yield Event("done", f"sent: {where}", fields | {"sent": True, "url": where})


def _planned(folder: Path, repository: str, licence: str | None) -> _Plan:
    files, stays = {}, []
    for path in sorted(folder.iterdir()):
        inside = sorted(path.glob("*")) if re.fullmatch(r"\d_[A-Z]\w{0,30}", path.name) and path.is_dir() else [path]
        for file in inside:
            name = file.relative_to(folder).as_posix()
            if not _SENT.fullmatch(name) or not file.is_file():
                stays.append(f"{name}/" if file.is_dir() else name)
            elif file.is_symlink() or file.parent.is_symlink():
                hint = f"make a folder of its own: bertworks convert {shlex.quote(str(folder))} -o ANOTHER-FOLDER"
                raise BertworksError("a link, which may lead to what is not for others", where=str(file), hint=hint)
            else:
                files[name] = file.stat().st_size
    if _CARD not in files or files[_CARD] > _LONGEST_CARD:
        hint = f"write one, or let `bertworks convert {shlex.quote(str(folder))} -o ANOTHER-FOLDER` begin it"
        raise BertworksError(f"there is no model card ({_CARD})", where=str(folder), hint=hint)
    card, notes = _completed((folder / _CARD), repository, licence)
    files[_CARD] = len(card.encode())
    return _Plan(files, stays, card, notes)


def _completed(path: Path, repository: str, licence: str | None) -> tuple[str, list[str]]:
    """The card with its licence, and what a reader of the hub will miss in it."""
    from huggingface_hub import ModelCard

    try:
        text = path.read_text(encoding="utf-8")
        card: Any = ModelCard(text)  # whose data take any name
        data = card.data.to_dict()
    except Exception as error:  # yaml has classes of its own for what is wrong
        reason = " ".join(str(error).split())[:200]
        raise BertworksError(f"the card's first lines, between ---, are no YAML: {reason}", where=str(path)) from None
    if licence is not None and data.get("license") != licence:
        card.data.license = licence
        text, data = str(card), card.data.to_dict()
    missing = [name for name in ("license", "language", "library_name") if not data.get(name)]
    notes = [f"the card does not say: {', '.join(missing)} (between the first two lines of ---)"] * bool(missing)
    if not text.partition("\n# ")[2].strip():
        notes.append(f"the card has no heading: {repository.partition('/')[2]} would be a good one")
    return text.rstrip("\n") + "\n", notes


def _send(folder: Path, repository: str, plan: _Plan, *, private: bool) -> str:
    """Makes the repository and one commit; the address of what was sent."""
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if get_token() is None:
        raise BertworksError(
            "no token of the Hugging Face hub on this machine",
            where=repository,
            hint="hf auth login (or set HF_TOKEN), with a token that may write",
        )
    content: dict[str, Path | bytes] = {name: folder / name for name in plan.files} | {_CARD: plan.card.encode()}
    try:
        api = HfApi(library_name="bertworks")
        api.create_repo(repository, private=private, exist_ok=True)
        operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in content.items()]
        return str(api.create_commit(repository, operations, commit_message="Upload with bertworks").commit_url)
    except OfflineModeIsEnabled:
        what, hint = "HF_HUB_OFFLINE is set: the hub is not asked for anything", "unset HF_HUB_OFFLINE; or --dry-run"
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        reason = (error.server_message or next(iter(str(error).splitlines()), ""))[:200]
        what = f"the hub refused it ({status}): {reason}"
        hint = "hf auth login with a token that may write there"
        hint = hint if status in (401, 403, 404) else "type the same again later"
    except Exception as error:  # of whatever library carries it
        reason = next(iter(str(error).strip().splitlines()), "")[:200]
        what = f"the hub cannot be reached: {type(error).__name__}: {reason}"
        hint = "connect to the network and type the same again; or --dry-run"
    raise BertworksError(what, where=repository, hint=hint)
