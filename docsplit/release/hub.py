"""Put a checkpoint on the Hub: the files of a release and no others.

`RELEASE` names the files, so that nothing else in a folder (logs, optimizer states, a user's notes or keys) leaves the
machine. The token is that of `hf auth login` or HF_TOKEN.
"""

import shlex
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HTTPError

from docsplit.data.seen_documents import TRAINING_DOCUMENTS_FILE
from docsplit.evaluation.results.markdown import one_line
from docsplit.modeling.checked_files import HEAD_FILE, HEAD_INDEX
from docsplit.modeling.families.table import code_files
from docsplit.release.records import MANIFEST, why_incomplete
from docsplit.runtime.command import as_command
from docsplit.runtime.options import CommandParser

RELEASE = (  # patterns of Path.glob
    "README.md", "config.json", "model*.safetensors", "model.safetensors.index.json", HEAD_FILE, HEAD_INDEX,
    "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json",
    "[0-9]*_*/config.json", "[0-9]*_*/model.safetensors",
    "encoder_with_words.py", "words/config.json", "words/tokenizer.json", "words/words.safetensors", "adapt.json",
    *code_files(), TRAINING_DOCUMENTS_FILE,
    "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "all_results.json", "run.json", "training.png", "evaluations/*/results.json", "evaluations/*/few_shot.png",
)  # fmt: skip
WRITTEN = (*RELEASE, "generation_config.json", "chat_template.jinja", "tokenizer.model", "spm.model")  # by saving one
API = HfApi()  # only one, which makes uploads in the background one after another
MODULE = "docsplit.release.hub"


def create_repository(repo_id: str, private: bool | None = None) -> str:
    """Create a repository unless it exists, and return its full name, user/name.

    Raises:
        ValueError: if the Hub cannot be reached, or this token, or none, may not write there; if it exists and is
            public, where a private one is asked for. Called before training, while it can be corrected.
    """
    try:
        name = API.create_repo(repo_id, private=private, exist_ok=True).repo_id
        API.auth_check(name, write=True)  # an existing one may be somebody else's
        is_public = private and not API.model_info(name).private  # it stays what it was
    except (HTTPError, OSError, ValueError) as error:
        if isinstance(error, HTTPError | ConnectionError | TimeoutError) and getattr(error, "response", None) is None:
            later = f"python -m {MODULE} FOLDER {repo_id}{' --private' if private else ''}"
            raise ValueError(
                f"There is no network: {API.endpoint} cannot be reached ({one_line(error)}). Run without "
                f"--push_to_hub, and upload later by `{later}`."
            ) from error
        raise ValueError(
            f"You cannot write to {repo_id!r} on the Hub: log in with `hf auth login`, or set HF_TOKEN to a token "
            f"that may write, and check that name. The cause: {one_line(error)}"
        ) from error
    if is_public:
        raise ValueError(
            f"{name} is on the Hub already, and public; a private repository is asked for, since a release has hashes "
            "of its training documents. Make it private in its settings on the Hub, or name another."
        )
    return name


def prepare_release(output_dir: Path, repo_id: str | None, private: bool | None) -> str:
    """Make the repository of a run, named after its folder unless named otherwise, and return its full name."""
    return create_repository(repo_id or output_dir.resolve().name, private)


def release_files(directory: Path) -> list[Path]:
    """List the files of the release in a folder."""
    return [path for pattern in RELEASE for path in directory.glob(pattern) if path.is_file()]


def push(directory: Path, repo_id: str, message: str, outdated: list[str] | None = None) -> str:
    """Upload the release of a folder in one commit, and return its address.

    Args:
        outdated: patterns of files on the Hub that go if they are not uploaded again.

    Raises:
        ValueError: if it is a checkpoint with a file that has changed since it was written.
    """
    if (directory / MANIFEST).exists() and (reason := why_incomplete(directory)):
        raise ValueError(f"{directory} is not uploaded: {reason}.")
    names = [path.relative_to(directory).as_posix() for path in release_files(directory)]
    if any(name.startswith("model") and name.endswith(".safetensors") for name in names):  # others go, and their head
        outdated = [*(outdated or []), "model*.safetensors", "model.safetensors.index*.json", HEAD_FILE]

    commit = API.upload_folder(
        repo_id=repo_id,
        folder_path=directory,
        commit_message=message,
        allow_patterns=names,
        delete_patterns=outdated,
    )
    return commit.commit_url


def push_at_the_end(
    directory: Path, repo_id: str, message: str = "End of training", outdated: list[str] | None = None
) -> None:
    """Upload the finished release; nothing is lost if that fails.

    Raises:
        SystemExit: naming the command that uploads it later.
    """
    try:
        push(directory, repo_id, message, outdated=outdated)
    except (HTTPError, OSError, ValueError) as error:
        command = shlex.join(["python", "-m", MODULE, str(directory), repo_id])
        raise SystemExit(
            f"The upload failed; all is in {directory}. Finish with\n\n    {command}\n\n{error}"
        ) from error
    print(f"On the Hub: {API.endpoint}/{repo_id}")


def download_card_files(repo_id: str, directory: Path) -> None:
    """Download the files that a card is made of, and no weights; code is not run.

    Raises:
        ValueError: if there is no such repository.
    """
    wanted = [name for name in RELEASE if name.endswith((".json", ".png", ".py")) and "tokenizer" not in name]
    wanted.append("README.md")  # which may state a licence
    try:
        snapshot_download(repo_id, allow_patterns=wanted, local_dir=directory)
    except (HTTPError, OSError, ValueError) as error:
        raise ValueError(f"{repo_id!r} cannot be read from the Hub: {one_line(error)}") from error


def main() -> None:
    """Upload the release in a folder: the end of a run whose upload failed."""
    parser = CommandParser(__doc__, prog=f"python -m {MODULE}")
    parser.add_argument("directory", type=Path, help="of a checkpoint")
    parser.add_argument("repo_id", help="user/name")
    help_text = "make a new repository private, and refuse a public one"
    parser.add_argument("--private", action="store_true", default=None, help=help_text)
    options = parser.parse_args()
    if not release_files(options.directory):
        raise ValueError(f"{options.directory} has no file of a release: name the folder of an encoder.")
    push_at_the_end(options.directory, create_repository(options.repo_id, options.private))


command = as_command(main)
if __name__ == "__main__":
    command()
