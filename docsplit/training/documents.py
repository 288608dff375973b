"""The documents of a pretraining run: loaded and tokenised once, or read as a stream while the model trains."""

from pathlib import Path
from typing import Any

from datasets import Dataset

from docsplit.data import corpora, preparation, tokenization
from docsplit.data.sets.labelled import LabelledSplit, load_probe, probe_counts
from docsplit.data.streaming import DocumentStream, StreamLayout, take
from docsplit.modeling.sentence_transformers_files import lower_cases
from docsplit.runtime.files import cache_directory
from docsplit.training.arguments import DataArguments, ModelArguments, PretrainingArguments

DOCUMENTS_FOR_A_TOKENIZER = 100_000  # of a stream, to train one on


def prepare_for_stream(data_args: DataArguments, args: PretrainingArguments) -> None:
    """A stream has no length, and finds its own place when it resumes."""
    if args.max_steps <= 0:
        raise ValueError(
            "--streaming needs --max_steps, since the number of documents is not known: one pass takes documents / "
            "(--per_device_train_batch_size x processes x --gradient_accumulation_steps) steps."
        )
    if data_args.shuffle_buffer_size < 1:
        raise ValueError(
            f"--shuffle_buffer_size is {data_args.shuffle_buffer_size}: expected 1 (no shuffling) or more."
        )
    if data_args.max_train_samples is not None:
        raise ValueError("--max_train_samples does not go with --streaming: --max_steps bounds the run.")
    args.ignore_data_skip = True
    args.accelerator_config.dispatch_batches = False  # type: ignore[union-attr]


def load_documents(
    model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments, checkpoint: Path | None
) -> tuple[Dataset, Dataset | None, Any, LabelledSplit | None, dict[str, Any]]:
    """Documents to train on and held-out ones, tokenised once and cached; the tokenizer, the probe, and the counts."""
    with args.main_process_first(desc="reading the corpus"):  # the others find it in the cache
        everything = corpora.load_corpus(data_args.corpus)
        corpus = corpora.for_pretraining(data_args.corpus, everything)
        num_sealed = len(everything) - len(corpus)
        corpus = corpora.add_text(corpus, data_args.text_column)
        if data_args.max_train_samples is not None:
            corpus = corpus.select(range(min(data_args.max_train_samples, len(corpus))))
        probe_split = load_probe(data_args.probe_corpus) if data_args.probe_corpus else None
        tokenizer = load_tokenizer(model_args, data_args, corpus, checkpoint)
        dataset, dropped = preparation.tokenize(
            corpus, tokenizer, segmentation_of(data_args), data_args.preprocessing_num_workers
        )
    counts = {"documents_in_corpus": dropped.pop("used"), "documents_dropped": sum(dropped.values())}
    counts["documents_kept_for_evaluations"] = num_sealed
    counts |= {f"documents_dropped_{reason}": count for reason, count in dropped.items()}
    if probe_split is not None:
        dataset, num_measured_on = preparation.without_documents(dataset, measured_on(probe_split))
        counts |= {"documents_kept_for_probe": num_measured_on} | probe_counts(probe_split)
    num_held_out = 0 if args.eval_strategy == "no" else data_args.max_eval_samples
    train_dataset, eval_dataset = preparation.hold_out(dataset, num_held_out, seed=args.seed)
    preparation.check_fills_a_batch(train_dataset, args.train_batch_size * args.world_size, "training")
    if eval_dataset is not None:
        preparation.check_fills_a_batch(eval_dataset, args.eval_batch_size * args.world_size, "evaluation")
    return train_dataset, eval_dataset, tokenizer, probe_split, counts


def stream_documents(
    model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments, checkpoint: Path | None
) -> tuple[DocumentStream, Dataset | None, Any, LabelledSplit | None, dict[str, Any]]:
    """As `load_documents`, of a corpus that is read while the model trains: held out are its first documents."""
    corpus = corpora.stream_corpus(data_args.corpus)
    num_held_out = 0 if args.eval_strategy == "no" else data_args.max_eval_samples
    with args.main_process_first(desc="reading the beginning of the corpus"):
        has_tokenizer = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
        num_read = num_held_out if has_tokenizer else max(num_held_out, DOCUMENTS_FOR_A_TOKENIZER)
        head = take(corpus, max(num_read, 1), data_args.text_column)  # names the columns if this one is missing
        probe_split = load_probe(data_args.probe_corpus) if data_args.probe_corpus else None
        tokenizer = load_tokenizer(model_args, data_args, head, checkpoint)
        eval_dataset, excluded = None, set()
        if num_held_out:
            held_out = head.select(range(min(num_held_out, len(head))))
            eval_dataset, _ = preparation.tokenize(held_out, tokenizer, segmentation_of(data_args))
            eval_dataset = preparation.with_fixed_draws(eval_dataset)
            preparation.check_fills_a_batch(eval_dataset, args.eval_batch_size * args.world_size, "evaluation")
            excluded = set(eval_dataset["document_id"][:].tolist())
    counts: dict[str, Any] = {"shards": corpus.rows.num_shards, "documents_in_corpus": None}  # nobody has counted them
    if probe_split is not None:
        excluded |= measured_on(probe_split)
        counts |= probe_counts(probe_split)
    layout = StreamLayout(
        args.train_batch_size, args.process_index, args.world_size, args.seed, data_args.shuffle_buffer_size
    )
    stream = DocumentStream(corpus, tokenizer, segmentation_of(data_args), layout, excluded)
    return stream, eval_dataset, tokenizer, probe_split, counts


def segmentation_of(data_args: DataArguments) -> preparation.Segmentation:
    """How the options cut the texts."""
    return preparation.Segmentation(data_args.text_column, data_args.sentence_splitter, data_args.words_of_passages)


def measured_on(split: LabelledSplit) -> set[int]:
    """The ids of a probe's validation and test documents, which are kept out of pretraining."""
    return {preparation.document_id(text) for name in ("validation", "test") for text in split.texts[name]}


def load_tokenizer(
    model_args: ModelArguments, data_args: DataArguments, corpus: Dataset, checkpoint: Path | None
) -> Any:
    """The checkpoint's when resuming, else the one named, else the model's, else one trained on the corpus."""
    source = checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    if source is not None:
        tokenizer = tokenization.load_tokenizer(source)
        if lower_cases(source):
            tokenization.lower_case(tokenizer)
        return tokenizer
    return tokenization.train_wordpiece(corpus, data_args.text_column, model_args.vocab_size, cache_directory())
