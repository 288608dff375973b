"""The table of heads: a new head on frozen embeddings is a row of `HEADS`."""

from docsplit.evaluation.heads.base import Head
from docsplit.evaluation.heads.frozen import knn, linear
from docsplit.evaluation.heads.mlp import mlp
from docsplit.runtime.plugins import Table

HEADS: Table[Head] = Table("head", {"mlp": mlp, "linear": linear, "knn": knn})  # on frozen embeddings
TFIDF_HEADS = ("linear", "knn")  # those that take sparse features
TUNING_HEADS = ("finetune", "setfit")  # those that change the encoder
