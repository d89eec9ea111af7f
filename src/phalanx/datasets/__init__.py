"""Loaders for real data. Each says where its data come from and under which licence; none ship with Phalanx."""

from phalanx.datasets.classification import Classification as Classification
from phalanx.datasets.digits import digits as digits
from phalanx.datasets.mnist import mnist as mnist
