"""bertworks: a BERT from your own text and labels. This file is the front door: the public names, each in its room.

Nothing is loaded before it is used: `import bertworks` takes milliseconds, and torch comes with the first name that
needs it. `docs/python.md` says what each name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bertworks.data.masking import MaskingConfig as MaskingConfig
    from bertworks.data.sampling import SamplingConfig as SamplingConfig
    from bertworks.doors.convert import convert as convert
    from bertworks.doors.convert import import_checkpoint as import_checkpoint
    from bertworks.doors.export import export as export
    from bertworks.doors.load import LoadedModel as LoadedModel
    from bertworks.doors.load import load as load
    from bertworks.doors.push import push as push
    from bertworks.errors import BertworksError as BertworksError
    from bertworks.errors import UsageError as UsageError
    from bertworks.files.model import load_model as load_model
    from bertworks.files.model import save_model as save_model
    from bertworks.learn.objectives import PretrainingModel as PretrainingModel
    from bertworks.learn.train import train as train
    from bertworks.nn.config import EncoderConfig as EncoderConfig
    from bertworks.nn.encoder import Encoder as Encoder
    from bertworks.nn.layout import Layout as Layout
    from bertworks.runs.check import check_file as check_file
    from bertworks.runs.finetune import finetune_events as finetune_events
    from bertworks.runs.finetune import make_finetune_request as make_finetune_request
    from bertworks.runs.pretrain import estimate as estimate
    from bertworks.runs.pretrain import pretrain as pretrain
    from bertworks.runs.trials import plan_trials as plan_trials
    from bertworks.runs.trials import run_trials as run_trials
    from bertworks.text.corpus import CorpusReader as CorpusReader
    from bertworks.text.corpus import Document as Document
    from bertworks.text.preflight import preflight as preflight
    from bertworks.text.sentences import split_sentences as split_sentences
    from bertworks.text.shards import Shards as Shards
    from bertworks.text.shards import write_shards as write_shards
    from bertworks.text.tokenizer import Encoding as Encoding
    from bertworks.text.tokenizer import Tokenizer as Tokenizer
    from bertworks.text.vocabulary import VocabularyConfig as VocabularyConfig
    from bertworks.text.vocabulary import train_vocabulary as train_vocabulary
    from bertworks.use.blimp import evaluate_blimp as evaluate_blimp
    from bertworks.use.doctor import doctor as doctor
    from bertworks.use.embed import embed_file as embed_file
    from bertworks.use.embedder import Embedder as Embedder
    from bertworks.use.embedder import embed as embed
    from bertworks.use.evaluate import evaluate_mlm as evaluate_mlm
    from bertworks.use.evaluate import evaluate_sts as evaluate_sts
    from bertworks.use.evaluate import evaluate_task as evaluate_task
    from bertworks.use.explain import explain as explain
    from bertworks.use.fill import fill as fill
    from bertworks.use.finetuned import finetune as finetune
    from bertworks.use.glue import evaluate_glue as evaluate_glue
    from bertworks.use.index import Index as Index
    from bertworks.use.indexing import index_file as index_file
    from bertworks.use.predict import answer_questions as answer_questions
    from bertworks.use.predict import predict_file as predict_file
    from bertworks.use.predictor import Predictor as Predictor
    from bertworks.use.retrieval import evaluate_retrieval as evaluate_retrieval
    from bertworks.use.score import score as score
    from bertworks.use.squad import evaluate_squad as evaluate_squad

_ROOMS = {
    "data.masking": ["MaskingConfig"],
    "data.sampling": ["SamplingConfig"],
    "doors.convert": ["convert", "import_checkpoint"],
    "doors.export": ["export"],
    "doors.load": ["LoadedModel", "load"],
    "doors.push": ["push"],
    "errors": ["BertworksError", "UsageError"],
    "files.model": ["load_model", "save_model"],
    "learn.objectives": ["PretrainingModel"],
    "learn.train": ["train"],
    "nn.config": ["EncoderConfig"],
    "nn.encoder": ["Encoder"],
    "nn.layout": ["Layout"],
    "runs.check": ["check_file"],
    "runs.finetune": ["finetune_events", "make_finetune_request"],
    "runs.pretrain": ["estimate", "pretrain"],
    "runs.trials": ["plan_trials", "run_trials"],
    "text.corpus": ["CorpusReader", "Document"],
    "text.preflight": ["preflight"],
    "text.sentences": ["split_sentences"],
    "text.shards": ["Shards", "write_shards"],
    "text.tokenizer": ["Encoding", "Tokenizer"],
    "text.vocabulary": ["VocabularyConfig", "train_vocabulary"],
    "use.blimp": ["evaluate_blimp"],
    "use.doctor": ["doctor"],
    "use.embed": ["embed_file"],
    "use.embedder": ["Embedder", "embed"],
    "use.evaluate": ["evaluate_mlm", "evaluate_sts", "evaluate_task"],
    "use.explain": ["explain"],
    "use.fill": ["fill"],
    "use.finetuned": ["finetune"],
    "use.glue": ["evaluate_glue"],
    "use.index": ["Index"],
    "use.indexing": ["index_file"],
    "use.predict": ["answer_questions", "predict_file"],
    "use.predictor": ["Predictor"],
    "use.retrieval": ["evaluate_retrieval"],
    "use.score": ["score"],
    "use.squad": ["evaluate_squad"],
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertworks' has no attribute {name!r}")
    value = getattr(import_module(f"bertworks.{_HOMES[name]}"), name)
    globals()[name] = value  # the next time Python finds it without asking here
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
