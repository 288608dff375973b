"""DocSplit in the stock Trainer: from a column of texts to a SentenceTransformer.

    python examples/pretrain_with_trainer.py
    torchrun --nproc_per_node 2 examples/pretrain_with_trainer.py    # other documents of both are the negatives

Change the constants: as `corpus` any `datasets.Dataset` with a column `text` will do.
"""

import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, Trainer, TrainingArguments

from docsplit import DocSplitCallback, DocSplitCollator, DocSplitForContrastivePretraining
from docsplit.data.corpora import for_pretraining, load_corpus
from docsplit.data.preparation import hold_out, tokenize

START = "bert-base-uncased"  # a name on the Hub, or a folder
CORPUS = "python_docs"  # the docstrings of the installed packages; or a file or folder, or a data set on the Hub
OUTPUT = "outputs/trained"


def main() -> None:
    """Train the encoder, save it, and embed a text with it."""
    # Documents are cut into sentences once; each epoch draws two halves of each anew
    tokenizer = AutoTokenizer.from_pretrained(START)
    corpus = for_pretraining(CORPUS, load_corpus(CORPUS))  # without what evaluations are measured on
    documents, _ = tokenize(corpus, tokenizer)
    train, held_out = hold_out(documents, 500, seed=0)  # for the evaluation loss; at most a tenth
    model = DocSplitForContrastivePretraining.from_pretrained(START, pooling="mean")
    collator = DocSplitCollator.for_model(model, tokenizer, view="docsplit")

    args = TrainingArguments(
        OUTPUT,
        per_device_train_batch_size=36,
        dataloader_drop_last=True,  # a smaller batch has fewer negatives
        remove_unused_columns=False,  # views are made of all columns
        logging_steps=10,
        eval_strategy="epoch",
        ddp_find_unused_parameters=False,
        use_cpu=not torch.accelerator.is_available(),  # else several processes without a GPU do not meet
    )
    trainer = Trainer(model, args, collator, train, held_out, processing_class=tokenizer)
    DocSplitCallback(trainer)  # other views in each epoch; the parts of the loss in the log
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        vectors = SentenceTransformer(OUTPUT).encode(["Return the sum of an array."])
        print(f"{OUTPUT} gives vectors of {vectors.shape[1]} numbers.")


if __name__ == "__main__":
    main()
