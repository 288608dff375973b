"""A view of one's own: `run_docsplit_pretraining.py --plugin examples/custom_view.py --view every_other_sentence`.

A view marks the tokens of a document that are in each of two texts. It gets the lengths of the document's units (two
or more sentences; passages if `docsplit.data.views.PASSAGE_VIEWS` names the view) and a random generator.
"""

import numpy as np

from docsplit.data.views import VIEWS


def every_other_sentence(unit_lengths, rng):
    """Put the first, third ... sentence against the others."""
    first = np.repeat(np.arange(len(unit_lengths)) % 2 == 0, unit_lengths)
    return first, ~first


VIEWS["every_other_sentence"] = every_other_sentence
