"""Ensembles: many networks trained side by side, and their averaged predictions.

In: the code of one network, `init` and `update`, or a network, a loss and an optimiser; data with one row for each
example. Out: an `Ensemble`, and a `Prediction` with the probabilities by all members. The other files are a Gaussian
about a network's weights (`posteriors.py`), the members on their devices (`members.py`, `placement.py`) and
training with its log and checkpoint (`epochs.py`, `watching.py`). Read `ensemble.py` first.
"""

from phalanx.ensembles.ensemble import Ensemble, ensemble
from phalanx.ensembles.learner import Learner, classification_loss, learner, linen_learner, nnx_learner
from phalanx.ensembles.posteriors import last_layer_laplace, last_layer_probabilities, swag, swag_draw
from phalanx.ensembles.prediction import Prediction, score

__all__ = [
    "Ensemble",
    "Learner",
    "Prediction",
    "classification_loss",
    "ensemble",
    "last_layer_laplace",
    "last_layer_probabilities",
    "learner",
    "linen_learner",
    "nnx_learner",
    "score",
    "swag",
    "swag_draw",
]
