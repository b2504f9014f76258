"""One object with all abilities of a model.

Each ability is loaded when it is first used.
"""

from collections.abc import Callable, Iterable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from bertworks.checkpoints.hf_config import architecture_of
from bertworks.checkpoints.hf_mapping import components_in_file
from bertworks.checkpoints.resolve import task_folder
from bertworks.config import packaged_table
from bertworks.errors import BertworksError
from bertworks.events import JsonObject
from bertworks.inference.causal_lm import Generation, SamplingOptions, Score, TextGenerator
from bertworks.inference.embedder import Embedder, Vectors
from bertworks.inference.engine import LazyModel, ModelUser, open_model
from bertworks.inference.explain import Explanation, explain
from bertworks.inference.masked_lm import Detection, Filler, Filling, detect, score
from bertworks.inference.predictor import Predictor
from bertworks.inference.translation import Translation, Translator
from bertworks.interop.convert import convert
from bertworks.io.tables import Data, texts_of
from bertworks.tasks.task import Answer
from bertworks.training.device import Precision, PrecisionOption

Ability = Literal["embed", "explain", "fill", "generate", "score", "detect", "predict", "translate"]
# What is missing, and what to do instead
_WHY = packaged_table(__file__, "abilities.toml")


class MissingMethodError(BertworksError, AttributeError):
    """The model has no method `predict`, as it has no task.

    `hasattr` reads an AttributeError as False.
    """


class LoadedModel(ModelUser):
    """A model that `load` opened.

    Its weights are read when they are first needed. All methods share one copy. A pickle holds the
    path of the model folder and a hash of its files.

    A fine-tuned model is a `FinetunedModel`, which has a method `predict` besides those of this
    class.

    Attributes:
        folder: where it lies.
        config: the shape of its encoder (`EncoderConfig`).
        tokenizer: text to token ids and back (`Tokenizer`).
        predictor: `predictor()` is the fine-tuned model as a `Predictor`, with `score` and
            `predict_proba`.
    """

    predict: Callable[..., list[Answer]]  # only a FinetunedModel has it; see `__getattr__`

    def __init__(
        self,
        model: str | Path | LazyModel,
        *,
        device: str = "auto",
        precision: PrecisionOption = "auto",
        language: str = "",
    ):
        source = open_model(model, device, language, translates=True, embeds=True)
        self._set_opening(loaded_model, source, precision=precision)
        self._precision: Precision = "bf16" if precision == "bf16" else "fp32"
        self._embedder = cache(partial(Embedder, source, precision=precision))
        self._filler = cache(partial(Filler, source))
        self._generator = cache(partial(TextGenerator, source, precision=precision))
        self._translator = cache(partial(Translator, source, precision=precision))
        self.predictor = cache(partial(Predictor, source, precision=precision))
        self.folder = source.folder
        self.config = source.config
        self.tokenizer = source.tokenizer
        self._is_open()

    def __repr__(self) -> str:
        c = self.config
        shape = (
            f"{c.num_hidden_layers} layers, hidden size {c.hidden_size}, {c.vocab_size:,} tokens"
        )
        return f"<model {self.folder}: {shape}; can {', '.join(self.can)}>"

    if not TYPE_CHECKING:  # mypy would accept any name

        def __getattr__(self, name: str) -> Any:
            """Explain why a model without a task has no method `predict`.

            The class does not have the method either: mteb takes each object that has one for a
            cross-encoder, and gives it no texts to encode.
            """
            if name == "predict":
                if "predict" in self.can:
                    raise MissingMethodError(
                        "a LoadedModel has no method predict, though this model is fine-tuned",
                        where=self.folder,
                        hint="open it with `load`, not with the class",
                    )
                reason = self._missing("predict")
                raise MissingMethodError(reason.what, where=reason.where, hint=reason.hint)
            return super().__getattr__(name)

    @cached_property
    def can(self) -> tuple[Ability, ...]:
        """The methods that this model supports.

        They are some of "embed", "explain", "fill", "generate", "score", "detect", "predict" and
        "translate".
        """
        if self.config.decoder is not None:
            has_attention = self.config.decoder.attention != "none" and not self._source.exported
            return ("explain", "translate") if has_attention else ("translate",)
        predicts: list[Ability] = ["predict"] if self._source.has_task else []
        if self._source.exported:
            pretrained = architecture_of(["encoder.", "lm_head."], self.config)
            is_lm = self._source.settings.get("architectures") == [pretrained]
            return tuple(predicts or (["fill"] if is_lm else ["embed"]))
        if self.config.kind == "static":
            return ("embed", "explain", *predicts) if predicts else ("embed",)
        if self.config.kind == "elmo":
            return ("embed", *predicts)
        # a plain head is the embedding matrix, which every file has
        if self.config.direction == "left_to_right":
            return ("embed", "explain", "generate", "score", *predicts)
        source = self._source
        parts = components_in_file(source.weights, self.config, source.settings)
        fills: list[Ability] = ["fill", "score"] if "lm_head" in parts else []
        detects: list[Ability] = ["detect"] if "replaced_token" in parts else []
        return ("embed", "explain", *fills, *detects, *predicts)

    @property
    def _vectors(self) -> Embedder:
        self._check("embed")
        return self._embedder()

    def embed(self, texts: Iterable[str], *, prompt: str | None = None) -> Vectors:
        """Return the vector of each text, float32 [texts, dimension].

        It is made as the model's own files say; else it is the mean of its tokens. `Embedder` has
        other ways.

        Args:
            prompt: what is put before each; None: the model's default.

        Raises:
            UsageError: one text and no list.
            BertworksError: only the model's answers were exported; its vectors are made in a way
                not known here.
        """
        return self._vectors.embed(texts, prompt=prompt)

    def encode(self, inputs: str | Iterable[Any], **options: Any) -> Any:
        """Return vectors for programs that look for this method of sentence-transformers.

        See `Embedder.encode`, which has the same arguments. mteb is such a program.

        Raises:
            UsageError: values that are no texts, an unknown prompt, or a value that an argument
                does not have.
            TypeError: an unknown argument.
            BertworksError: only the model's answers were exported.
        """
        return self._vectors.encode(inputs, **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return how similar each vector is to each other one: see `Embedder.similarity`."""
        return self._vectors.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return how similar each vector is to the one with the same number.

        See `Embedder.similarity_pairwise`.
        """
        return self._vectors.similarity_pairwise(embeddings1, embeddings2)

    @property
    def mteb_model_meta(self) -> Any:
        """The description of the model for mteb: see `Embedder.mteb_model_meta`."""
        return self._vectors.mteb_model_meta

    def fill(self, texts: Iterable[str], k: int = 5) -> list[list[list[Filling]]]:
        """For each text, for each of its masks, the k most probable tokens.

        Raises:
            UsageError: one text and no list; k is not positive.
            BertworksError: a text without a mask; the model has no masked LM head.
        """
        self._check("fill")
        return [self._filler()(text, k) for text in texts_of(texts, "fill([text])[0]")]

    def generate(self, texts: Iterable[str], **options: Any) -> list[Generation]:
        """Return the continuation of each text by a model that reads from left to right.

        See `bertworks.generate`.

        Args:
            options: `max_tokens`, `temperature`, `top_k`, `top_p`, `seed`, `stop` and `sampling`,
                as there.

        Raises:
            UsageError: one text and no list; an option outside its range.
            BertworksError: the model reads in both directions; a text without tokens, or with too
                many.
        """
        self._check("generate")
        chosen = SamplingOptions(**options)
        return list(self._generator()(texts_of(texts, "generate([text])[0]"), chosen))

    def translate(
        self,
        texts: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_tokens: int | None = None,
        no_repeat_ngram: int | None = None,
        target_language: str | None = None,
        cut: bool = False,
    ) -> list[Translation]:
        """Return the translation of each text by a model with a decoder.

        See `bertworks.translate`, which has the same arguments.

        Raises:
            UsageError: one text and no list; an option outside its range.
            BertworksError: the model has no decoder; a sentence with more tokens than it reads.
        """
        self._check("translate")
        translator = self._translator()
        rules = translator.rules(beam, length_penalty, no_repeat_ngram)
        texts = texts_of(texts, "translate([text])[0]")
        options: JsonObject = {"max_tokens": max_tokens, "target_language": target_language}
        return list(translator(texts, rules, **options, cuts=cut))

    def score(self, sentences: Iterable[str], *, within_word: bool = False) -> list[Score]:
        """Return the log-likelihood or pseudo-log-likelihood of each sentence.

        See `bertworks.score`.

        Raises:
            UsageError: one sentence and no list.
            BertworksError: an empty sentence; the model has no masked LM head.
        """
        self._check("score")
        sentences = list(texts_of(sentences, "score([text])[0]"))
        return list(
            score(self._source, sentences, within_word=within_word, precision=self._precision)
        )

    def detect(self, texts: Iterable[str]) -> list[Detection]:
        """Return for each token of each text the probability that it was replaced.

        See `bertworks.inference.masked_lm.detect`.

        Raises:
            UsageError: one text and no list.
            BertworksError: a text without tokens; the model has no head for replaced tokens.
        """
        self._check("detect")
        return list(detect(self._source, texts, self._precision))

    def explain(
        self, *texts: str, target: str | None = None, baseline: Literal["mask", "pad"] = "mask"
    ) -> Explanation:
        """Why the model answers what it answers to one text, or pair: see `bertworks.explain`.

        Raises:
            UsageError: texts that the model does not read, or a target that it does not have.
            BertworksError: it is an exported one.
        """
        self._check("explain")
        return explain(self._source, *texts, target=target, baseline=baseline)

    def save(self, folder: str | Path) -> None:
        """Writes a clean copy of the model folder: see `bertworks.convert`.

        Raises:
            UsageError: there is something in the way.
            BertworksError: it is an exported one.
        """
        list(convert(self.folder, folder))

    def _check(self, ability: Ability) -> None:
        if ability not in self.can:
            raise self._missing(ability)

    def _missing(self, ability: Ability) -> BertworksError:
        """Return the error about an ability that this model does not have."""
        kind: str = "exported" if self._source.exported else self.config.direction
        if self.config.decoder is not None and not (kind == "exported" and ability == "explain"):
            kind = "decoder"
        if self.config.kind in ("static", "elmo"):
            kind = self.config.kind
        why, instead = (_WHY["any"] | _WHY.get(kind, {}))[ability]
        if ability == "score" and "predict" in self.can:
            instead = "predictor().score(texts, labels) gives the metric of its task"
        return BertworksError(
            f"this model cannot {ability}: {why}; it can {', '.join(self.can)}",
            where=self.folder,
            hint=instead,
        )


class FinetunedModel(LoadedModel):
    """A model with the head of a task that `load` opened.

    Most tasks of mteb refuse an object with a method `predict`, as they take it for a
    cross-encoder: they need an `Embedder` of the same folder.
    """

    def predict(self, texts: Data, *, top_k: int = 1, probabilities: bool = False) -> list[Answer]:
        """What a fine-tuned model says of each text: see `Predictor.predict`.

        Raises:
            UsageError: texts of another kind, or more than one answer of a model that gives only
                one.
        """
        return self.predictor().predict(texts, top_k=top_k, probabilities=probabilities)


def loaded_model(model: LazyModel, *, precision: PrecisionOption) -> LoadedModel:
    """Return an open model as an object with the methods that fit it."""
    kind = FinetunedModel if model.has_task else LoadedModel
    return kind(model, precision=precision)


def load(
    model: str | Path,
    *,
    task: str | None = None,
    device: str = "auto",
    precision: PrecisionOption = "auto",
    language: str = "",
) -> LoadedModel:
    """Return a model as one object that has a method for each of its uses.

    They are `fill`, `generate`, `translate`, `score`, `embed`, `detect`, `predict`, `explain`,
    `encode`, `tokenizer` and `config`. `can` lists what the model supports; errors name the
    alternative.

    Args:
        model: a folder of ours, of transformers, of sentence-transformers, or an exported one;
            `minilm`; or a hub id.
        task: the name of a task of a joint fine-tuning.
        device: "auto", "cpu" or "cuda".
        precision: "fp32", "bf16", "int8" or "auto": for vectors as `Embedder` has it, for
            predictions as `Predictor`; fills and explanations are in fp32, scores and replaced
            tokens in bf16 if `precision` is bf16.
        language: of the texts, for a model with several (XLM).

    Raises:
        UsageError: the model has several languages, and none is chosen.
        BertworksError: no such model or task, or files that are damaged or not of a BERT.
    """
    source = open_model(task_folder(model, task), device, language, translates=True, embeds=True)
    return loaded_model(source, precision=precision)
