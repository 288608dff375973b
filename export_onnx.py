"""Write an encoder as one ONNX file, for runtimes without PyTorch: token ids in, document embeddings out.

    pip install onnx onnxscript onnxruntime
    python export_onnx.py outputs/docsplit outputs/docsplit_onnx

    import numpy, onnxruntime, tokenizers
    tokenizer = tokenizers.Tokenizer.from_file("outputs/docsplit_onnx/tokenizer.json")  # truncates and pads
    session = onnxruntime.InferenceSession("outputs/docsplit_onnx/model.onnx")
    rows = tokenizer.encode_batch(["A long document ...", "Another one ..."])
    ids, mask = (numpy.array([getattr(row, name) for row in rows]) for name in ("ids", "attention_mask"))
    embeddings, = session.run(None, {"input_ids": ids, "attention_mask": mask})  # (B, T) int64 -> (B, H) float32

The file includes pooling, the first numbers alone where the encoder has a truncate_dim, and scaling to unit length
unless it was trained on dot products. B and T are free. Before the script ends, the file is compared under onnxruntime
with what SentenceTransformer gives for texts.

A graph document model takes the passages of one document as rows and gives (1, H); passages.py is written beside it:

    passages = to_passages("A document of any length ...", words=100)  # as the script says
    rows = tokenizer.encode_batch([passage.text for passage in passages])
    ... | {"section": numpy.array([passage.section for passage in passages])}  # unless the graph is full

A static encoder (`adapt.py --static`) is exported as it is. An encoder with words is refused, since it would need
ids of the whole text as another input: export the encoder that words were added to, or a static encoder.
"""

from docsplit.runtime.command import as_command  # isort: skip (before torch)
import shutil
from pathlib import Path

from docsplit.runtime.options import CommandParser, add_plugin


def main() -> None:
    """Write the file, compare it with the encoder, and keep it only if it agrees."""
    parser = CommandParser(__doc__)
    add_plugin(parser)
    parser.add_argument("encoder", help="checkpoint of this project or a SentenceTransformer: Hub name or folder")
    parser.add_argument("out", type=Path, help="folder to write model.onnx and tokenizer.json into")
    options = parser.parse_args()
    # Heavy imports come after parsing: --help and mistyped options are answered soon.
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        parser.error(f"{error.name} is missing: pip install onnx onnxscript onnxruntime")
    from docsplit.runtime.files import name_failed_writes
    from docsplit.runtime.sharing import OutputFolder

    with OutputFolder(options.out, "export_onnx.py", "OUT"), name_failed_writes(options.out):
        export_encoder(options.encoder, options.out)


def export_encoder(name: str, out: Path) -> None:
    """Write the files of an encoder into a folder.

    Raises:
        RuntimeError: if the file differs from the encoder; it is removed.
    """
    import torch
    from transformers.utils.logging import disable_progress_bar

    from docsplit.modeling.families.graph import PASSAGES_FILE
    from docsplit.modeling.families.table import family_of
    from docsplit.modeling.loading import load_encoder, prompts_of, reader_config, tokens_read
    from docsplit.release.onnx import ONNX_FILES, ONNX_TOLERANCE, onnx_difference, write_onnx, write_tokenizer
    from docsplit.runtime.launching import describe_computing

    disable_progress_bar()  # of weights, which load within a second
    encoder = load_encoder(name, device="cpu")
    print(describe_computing(encoder.device, torch.float32, reader_config(encoder)))
    path = out / "model.onnx"
    embedder = write_onnx(encoder, path)
    write_tokenizer(encoder, name, out / "tokenizer.json")
    difference = onnx_difference(embedder, out, longest=min(tokens_read(encoder) or 512, 512))
    if not difference <= ONNX_TOLERANCE:
        for file in ONNX_FILES:
            (out / file).unlink(missing_ok=True)
        raise RuntimeError(f"onnxruntime differs from SentenceTransformer by {difference:.1e} of the largest number.")
    if prompt := prompts_of(encoder)[0]:
        print(f"Put {prompt!r} before each text, as the encoder does by default: the ONNX model has no prompt.")
    if family_of(embedder.config).rows == "passages":
        shutil.copy(PASSAGES_FILE, out)
        most, words = embedder.config.max_passages, embedder.config.passage_words
        passages = f"first {most} passages" if most else "passages"
        print(f"Give the {passages} of one document at a time, of {words} words: passages.py.")
    length = "of unit length" if embedder.unit_length else f"for {encoder.similarity_fn_name}"
    print(
        f"{path}: {path.stat().st_size / 1e6:.1f} MB, embeddings {length}, "
        f"{'whole texts' if tokens_read(encoder) is None else f'up to {tokens_read(encoder)} tokens'}; "
        f"differs from SentenceTransformer by {difference:.1e}."
    )


command = as_command(main)
if __name__ == "__main__":
    command()
