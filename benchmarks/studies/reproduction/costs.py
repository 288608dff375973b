"""What a cell of a reproduction costs, in tokens: from these and a speed its hours are projected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from docsplit.data.views import MOST_PASSAGES, OF_PASSAGES
from docsplit.runtime.files import ROOT

Options = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """What a cell is projected from."""

    train: float = 0.0  # tokens trained on, all passes together
    read: float = 0.0  # tokens embedded
    seconds: float = 0.0  # beside: of heads, say
    processes: int = 1  # that start one after another

    def hours(self, speed: Mapping[str, Any]) -> float:
        """Project the hours from the tokens a second that are trained on and read."""
        trained = self.train / speed["train_tokens_per_second"] + self.read / speed["read_tokens_per_second"]
        return (trained + self.seconds + self.processes * speed["seconds_a_step"]) / 3600


def options_of(step: Mapping[str, Any]) -> Options:
    """Return the options of a step, those of its recipe included."""
    stated = yaml.safe_load((ROOT / step["recipe"]).read_text(encoding="utf-8")) if step.get("recipe") else {}
    return stated | step["options"]


def trained_tokens(recipe: Mapping[str, Any], method: Mapping[str, Any]) -> float:
    """Project the tokens of a training, each pass counted, times what a token of this encoder costs more.

    The whole document is read twice in the view simcse, and once, in two parts, in others; of passages, the
    first 50. Masked LM is a pass more, and so is a third of one for the gradient cache. A method with a corpus of its
    own may say how many documents that has, and the tokens of one.
    """
    step: Options = {
        "recipe": method.get("recipe"),
        "options": recipe.get("common", {}) | (method.get("options") or {}),
    }
    options = options_of(step)
    processes = processes_of(launch_of(recipe, method))
    batch = options.get("per_device_train_batch_size", 8) * processes
    documents, tokens = (method.get(name, recipe[name]) for name in ("documents", "document_tokens"))
    epochs = options.get("num_train_epochs", 1) * documents / batch
    steps = options["max_steps"] if options.get("max_steps", -1) > 0 else epochs
    view, longest = options.get("view", "docsplit"), options.get("max_seq_length", 512)
    most = longest * (MOST_PASSAGES if view in OF_PASSAGES else 2)
    whole = 2 * min(tokens, longest) if view == "simcse" else min(tokens, most)
    passes = float(options.get("contrastive_weight", 1) > 0) + float(options.get("mlm_weight", 0.1) > 0)
    passes += 1 / 3 if options.get("cache_gradients") else 0
    return steps * batch * whole * passes * method.get("slower", 1)


def launch_of(recipe: Mapping[str, Any], method: Mapping[str, Any]) -> Sequence[Any]:
    """Return the words of Accelerate's launcher for a training: the method's own, else those of all."""
    return method.get("launch", recipe.get("launch")) or []


def processes_of(launch: Sequence[Any]) -> int:
    """Return how many processes these words of the launcher start."""
    words = list(map(str, launch))
    return int(words[words.index("--num_processes") + 1]) if "--num_processes" in words else 1
