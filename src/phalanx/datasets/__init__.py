"""Loaders for real data sets, and generators of data like them; Phalanx ships one table of 31 rows.

In: the folder with a data set's files, else the environment variable PHALANX_DATA. Out: a record of NumPy arrays, such
as `Classification` or `LabelledRows`, with the source and the licence of the data. Read `covertype.py` first.
"""

from phalanx.datasets.classification import Classification
from phalanx.datasets.covertype import LabelledRows, covertype
from phalanx.datasets.covertype_generated import generate_covertype
from phalanx.datasets.digits import digits
from phalanx.datasets.mnist import mnist
from phalanx.datasets.movielens import Watched, generate_movielens, movielens
from phalanx.datasets.trees import trees

__all__ = [
    "Classification",
    "LabelledRows",
    "Watched",
    "covertype",
    "digits",
    "generate_covertype",
    "generate_movielens",
    "mnist",
    "movielens",
    "trees",
]
