"""An objective of one's own: `--plugin examples/custom_objective.py --objective projected_info_nce`.

An objective is an `nn.Module` that owns what it trains besides the encoder. It gets the embeddings (B, 2, H) of the
two views of this process's documents, and returns a loss whose mean over processes is the loss over all documents.
Its `Options` become options of `run_docsplit_pretraining.py`. The projection is trained and resumed: each
checkpoint-N has it in its model.safetensors, and the released encoder is without it.
"""

from dataclasses import dataclass, field

from torch import nn

from docsplit.modeling.objectives.info_nce import InfoNCE
from docsplit.modeling.objectives.table import OBJECTIVES


class ProjectedInfoNCE(InfoNCE):
    """InfoNCE behind a projection, which is thrown away after pretraining (SimCLR, section 2.1)."""

    @dataclass
    class Options(InfoNCE.Options):
        """InfoNCE behind a projection."""

        projection_width: int = field(default=128, metadata={"help": "Width of the projected vectors."})

        def __post_init__(self):
            super().__post_init__()
            if self.projection_width < 1:
                raise ValueError(f"projection_width is {self.projection_width}, expected 1 or more.")

    def __init__(self, options, body):
        super().__init__(options, body)
        width = body.get_embedding_dimension()
        self.project = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, options.projection_width))

    def forward(self, embeddings, document_ids, counts):
        return super().forward(self.project(embeddings), document_ids, counts)


OBJECTIVES["projected_info_nce"] = ProjectedInfoNCE
