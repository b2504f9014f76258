"""Train, fine-tune and use BERT models on your own data.

The public names are imported on first use: `import bertworks` takes milliseconds and does not
import torch. They are documented in `docs/reference/python.md`.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bertworks.batching.sampling import (
        MaskingConfig as MaskingConfig,
        SamplingConfig as SamplingConfig,
    )
    from bertworks.checkpoints.model_folder import (
        load_model as load_model,
        save_model as save_model,
    )
    from bertworks.checkpoints.resolve import task_folder as task_folder
    from bertworks.diagnostics import doctor as doctor
    from bertworks.errors import BertworksError as BertworksError, UsageError as UsageError
    from bertworks.evaluation.ablation import (
        evaluate_ablation as evaluate_ablation,
        list_ablations as list_ablations,
    )
    from bertworks.evaluation.evaluate import (
        evaluate_blimp as evaluate_blimp,
        evaluate_similarity as evaluate_similarity,
        evaluate_squad as evaluate_squad,
        evaluate_sts as evaluate_sts,
        evaluate_task as evaluate_task,
    )
    from bertworks.evaluation.glue import evaluate_glue as evaluate_glue
    from bertworks.evaluation.masked_lm import evaluate_mlm as evaluate_mlm
    from bertworks.evaluation.probe import evaluate_probe as evaluate_probe
    from bertworks.evaluation.retrieval import (
        evaluate_pairs as evaluate_pairs,
        evaluate_retrieval as evaluate_retrieval,
    )
    from bertworks.evaluation.translation import evaluate_translation as evaluate_translation
    from bertworks.inference.causal_lm import generate as generate
    from bertworks.inference.embed_file import embed_file as embed_file
    from bertworks.inference.embedder import Embedder as Embedder, embed as embed
    from bertworks.inference.explain import explain as explain
    from bertworks.inference.masked_lm import fill as fill, score as score
    from bertworks.inference.predictor import (
        Predictor as Predictor,
        answer_questions as answer_questions,
        predict_file as predict_file,
        predict_in_words as predict_in_words,
    )
    from bertworks.inference.translate_file import translate_file as translate_file
    from bertworks.inference.translation import translate as translate
    from bertworks.interop.convert import convert as convert, import_checkpoint as import_checkpoint
    from bertworks.interop.export import export as export
    from bertworks.interop.load import (
        FinetunedModel as FinetunedModel,
        LoadedModel as LoadedModel,
        load as load,
    )
    from bertworks.interop.push import push as push
    from bertworks.io.options import ReadOptions as ReadOptions
    from bertworks.io.remote import published as published
    from bertworks.models.config import EncoderConfig as EncoderConfig
    from bertworks.models.layout import Layout as Layout
    from bertworks.models.transformer import Encoder as Encoder
    from bertworks.retrieval.index import Index as Index, index_file as index_file
    from bertworks.runs.dataset_report import check_file as check_file
    from bertworks.runs.finetune import (
        finetune as finetune,
        finetune_events as finetune_events,
        make_finetune_request as make_finetune_request,
    )
    from bertworks.runs.joint import (
        finetune_joint as finetune_joint,
        joint_events as joint_events,
        make_joint_request as make_joint_request,
    )
    from bertworks.runs.pretrain import estimate as estimate, pretrain as pretrain
    from bertworks.runs.trials import plan_trials as plan_trials, run_trials as run_trials
    from bertworks.text.corpus import CorpusReader as CorpusReader, Document as Document
    from bertworks.text.corpus_report import corpus_report as corpus_report
    from bertworks.text.segmentation import split_sentences as split_sentences
    from bertworks.text.shards import Shards as Shards, write_shards as write_shards
    from bertworks.text.tokenizer import Encoding as Encoding, Tokenizer as Tokenizer
    from bertworks.text.vocabulary import (
        VocabularyConfig as VocabularyConfig,
        train_vocabulary as train_vocabulary,
    )
    from bertworks.training.device import set_threads as set_threads
    from bertworks.training.loop import train as train
    from bertworks.training.objectives import PretrainingModel as PretrainingModel

# Names to modules, from the imports above: they are written only once.
_MODULE_OF = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'bertworks' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # Python finds it there the next time
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
