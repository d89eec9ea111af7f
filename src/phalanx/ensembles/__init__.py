"""Ensembles: many networks trained side by side, and their averaged predictions.

In: the code of one network, `init` and `update`, or a network, a loss and an optimiser; data with one row for each
example. Out: an `Ensemble`, and a `Prediction` with the probabilities by all members. The other files are a Gaussian
about a network's weights (`swag.py`, `laplace.py`), the members on their devices (`members.py`, `placement.py`) and
training with its log and checkpoint (`epochs.py`, `watching.py`). Read `ensemble.py` first.
"""

from phalanx.ensembles.ensemble import Ensemble as Ensemble
from phalanx.ensembles.ensemble import ensemble as ensemble
from phalanx.ensembles.laplace import last_layer_laplace as last_layer_laplace
from phalanx.ensembles.laplace import last_layer_probabilities as last_layer_probabilities
from phalanx.ensembles.learner import Learner as Learner
from phalanx.ensembles.learner import classification_loss as classification_loss
from phalanx.ensembles.learner import learner as learner
from phalanx.ensembles.learner import linen_learner as linen_learner
from phalanx.ensembles.learner import nnx_learner as nnx_learner
from phalanx.ensembles.prediction import Prediction as Prediction
from phalanx.ensembles.prediction import score as score
from phalanx.ensembles.swag import swag as swag
from phalanx.ensembles.swag import swag_draw as swag_draw
