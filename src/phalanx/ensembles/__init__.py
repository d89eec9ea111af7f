"""Many networks trained side by side, and what they say together."""

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
