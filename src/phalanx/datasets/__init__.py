"""Loaders for real data. Each says where its data come from and under which licence; none ship with Phalanx."""

from phalanx.datasets.classification import Classification as Classification
from phalanx.datasets.covertype import covertype as covertype
from phalanx.datasets.covertype_generated import generate_covertype as generate_covertype
from phalanx.datasets.digits import digits as digits
from phalanx.datasets.labelled_rows import LabelledRows as LabelledRows
from phalanx.datasets.mnist import mnist as mnist
from phalanx.datasets.movielens import generate_movielens as generate_movielens
from phalanx.datasets.movielens import movielens as movielens
from phalanx.datasets.watched import Watched as Watched
