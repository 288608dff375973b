"""A model family: what some encoders need from their caller besides token ids and a mask.

X-MOD has adapters for each language, and counts positions as RoBERTa does. With `--plugin examples/custom_family.py`
every script can train, measure and export it. `docsplit.modeling.families.base.Family` lists all that can differ:
facts are fields, actions are methods, and the defaults fit a plain encoder.
"""

import torch

from docsplit.modeling.families.base import Family
from docsplit.modeling.families.table import FAMILIES


def in_english(self, input_ids=None, *args, **kwargs):
    """Take texts for English, unless their language is given."""
    if input_ids is not None and kwargs.get("lang_ids") is None:
        english = self.config.languages.index("en_XX")
        kwargs["lang_ids"] = torch.full((len(input_ids),), english, device=input_ids.device)
    with torch.autocast(self.device.type, enabled=False):  # its adapters mix precisions
        return type(self).forward(self, input_ids, *args, **kwargs)


class Xmod(Family):
    """A transformer with an adapter for each language."""

    def layers(self, config):
        """Say in a card what a layer has besides."""
        return f" with adapters for {len(config.languages)} languages"


FAMILIES["xmod"] = Xmod(forward=in_english, positions_follow_padding=True)  # by the config's `model_type`
