"""`push` sends what it shows and nothing else. The hub is a local server of the test."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.interop.push import push

SENT = [
    "README.md",
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "weights.json",
]
CARD = "---\nlicense: mit\nlanguage: en\nlibrary_name: transformers\n---\n\n# A model\n\nText é.\n"


@pytest.fixture
def folder(tmp_path):
    from tests.support.fine import write_model  # brings torch

    folder = write_model(tmp_path / "model")
    (folder / "README.md").write_text(CARD)
    return folder


def planned(folder, **options):
    """The text of a dry run, and its fields."""
    events = list(push(folder, "me/mybert", dry_run=True, **options))
    return "\n".join(event.text for event in events), events[-1].fields


# --- a dry run


def test_a_dry_run_shows_files_sizes_and_the_whole_card(folder, hub):
    text, fields = planned(folder)
    assert list(fields["files"]) == SENT
    assert fields["files"] == {name: (folder / name).stat().st_size for name in SENT}
    assert not fields["sent"]
    assert f"{fields['files']['model.safetensors']:,} bytes" in text
    assert CARD.strip() in text
    assert "nothing was sent" in text
    assert "lacks" not in text
    assert Hub.seen == []


def test_only_model_files_are_sent(folder):
    for name in (
        "pytorch_model.bin",
        "state.safetensors",
        "predictions.csv",
        ".env",
        "evil.py",
        "tokenizer.json.bak",
    ):
        (folder / name).write_text("secret")
    (folder / "checkpoints").mkdir()
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "1_Pooling" / "secret.txt").write_text("{}")
    (folder / "modules.json").write_text("[]")
    text, fields = planned(folder)
    assert sorted(fields["files"]) == sorted([*SENT, "1_Pooling/config.json", "modules.json"])
    assert set(fields["stays"]) == {
        ".env",
        "1_Pooling/secret.txt",
        "checkpoints/",
        "evil.py",
        "predictions.csv",
        "pytorch_model.bin",
        "state.safetensors",
        "tokenizer.json.bak",
    }
    assert "not sent: " in text


def test_a_card_is_completed_but_not_changed_here(folder):
    (folder / "README.md").write_text("---\ntags: [bert]\n---\nNo heading.\n")
    text, fields = planned(folder, licence="apache-2.0")
    assert "the card lacks language, library_name" in text
    assert "the card has no heading, such as: # mybert" in text
    assert "license: apache-2.0" in fields["card"]
    assert fields["files"]["README.md"] == len(fields["card"].encode())
    assert "license" not in (folder / "README.md").read_text()
    (folder / "README.md").write_text("# No first lines\n\nÉ.\n")
    text, fields = planned(folder)
    assert "the card lacks license, language, library_name" in text
    assert fields["card"] == "# No first lines\n\nÉ.\n"


@pytest.mark.parametrize(
    "name", ["mybert", "", "a/b/c", "me/my bert", "../mybert", "me/", "me/x--y", "me/" + "x" * 99]
)
def test_wrong_names_are_refused(folder, name):
    with pytest.raises(UsageError, match="owner"):
        list(push(folder, name, dry_run=True))


def test_what_is_not_a_model_is_refused(folder, tmp_path):
    with pytest.raises(BertworksError, match="no such model folder"):
        list(push(tmp_path / "absent", "me/x", dry_run=True))
    (folder / "README.md").write_text("---\na: [\n---\n")
    with pytest.raises(BertworksError, match="not YAML"):
        planned(folder)
    (folder / "README.md").write_bytes(b"\xff\xfe")
    with pytest.raises(BertworksError, match="not YAML"):
        planned(folder)
    (folder / "README.md").unlink()
    with pytest.raises(BertworksError, match="no model card"):
        planned(folder)
    (tmp_path / "secret").write_text(CARD)
    (folder / "README.md").symlink_to(tmp_path / "secret")
    with pytest.raises(BertworksError, match="links are not sent"):
        planned(folder)
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(BertworksError, match="not a safetensors file"):
        planned(folder)


# --- sending


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as one commit needs."""

    status = 200
    seen: list[tuple[str, str, str]] = []  # noqa: RUF012

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        self.seen.append((self.path, self.headers.get("authorization", ""), body))
        url = f"http://127.0.0.1:{self.server.server_port}/me/mybert"
        if self.path == "/api/repos/create":
            answer = {"url": url, "name": "me/mybert"}
        elif self.path.endswith("/preupload/main"):
            files = [file["path"] for file in json.loads(body)["files"]]
            answer = {
                "files": [
                    {"path": f, "uploadMode": "regular", "shouldIgnore": False} for f in files
                ]
            }
        else:
            answer = {
                "success": True,
                "commitOid": "a" * 40,
                "commitUrl": f"{url}/commit/{'a' * 40}",
                "hookOutput": "",
            }
        content = json.dumps(answer if self.status == 200 else {"error": "You may not."}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    """A hub that answers here, and a token for it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        "huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(Hub, "status", 200)
    monkeypatch.setattr(Hub, "seen", [])
    monkeypatch.setenv("HF_TOKEN", "hf_for_tests")
    yield server
    server.shutdown()
    server.server_close()


def test_what_was_shown_is_sent_in_one_commit(folder, hub):
    (folder / "secret.txt").write_text("secret")
    _, plan = planned(folder, licence="cc0-1.0")
    events = list(push(folder, "me/mybert", private=True, licence="cc0-1.0"))
    assert events[-1].fields["sent"]
    assert events[-1].text.startswith("sent: http://127.0.0.1:")
    # the card, looked at beforehand
    paths = [path for path, _, _ in Hub.seen if path != "/api/validate-yaml"]
    assert paths == [
        "/api/repos/create",
        "/api/models/me/mybert/preupload/main",
        "/api/models/me/mybert/commit/main",
    ]
    assert {token for _, token, _ in Hub.seen} == {"Bearer hf_for_tests"}
    repository = json.loads(Hub.seen[0][2])
    assert repository.get("private") is True or repository.get("visibility") == "private"
    lines = [json.loads(line) for line in Hub.seen[-1][2].splitlines()]
    contents = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in lines
        if line["key"] == "file"
    }
    assert sorted(contents) == SENT
    for name in SENT[1:]:
        assert contents[name] == (folder / name).read_bytes()
    assert contents["README.md"].decode() == plan["card"]


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "auth login"), (403, "auth login"), (500, "later")]
)
def test_a_refusal_is_reported(folder, hub, status, hint, monkeypatch):
    monkeypatch.setattr(Hub, "status", status)
    monkeypatch.setattr("time.sleep", lambda _: None)  # it asks a hub that fails again
    with pytest.raises(BertworksError, match=rf"the hub refused the upload \({status}\)") as raised:
        list(push(folder, "me/mybert"))
    assert hint in raised.value.hint


def test_without_network_or_token_nothing_happens(folder, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(BertworksError, match="cannot be reached"):
        list(push(folder, "me/mybert"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BertworksError, match="HF_HUB_OFFLINE is set"):
        list(push(folder, "me/mybert"))
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(BertworksError, match="no token"):
        list(push(folder, "me/mybert"))
    assert Hub.seen == []


def test_the_command(folder, capsys):
    assert main(["push", str(folder), "me/mybert", "--dry-run", "--license", "mit", "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done["kind"] == "done"
    assert list(done["files"]) == SENT
    assert main(["push", str(folder), "mybert", "--dry-run"]) == 2
    assert "hint: give owner/mybert" in capsys.readouterr().err


def test_tokenizer_files_of_all_kinds_are_sent_and_no_others(folder):
    kinds = ["vocab.json", "merges.txt", "spiece.model", "added_tokens.json"]
    for name in [*kinds, *(f"pytorch_{name}" for name in kinds), "other.model"]:
        (folder / name).write_text("{}")
    _, fields = planned(folder)
    assert sorted(fields["files"]) == sorted([*SENT, *kinds])
