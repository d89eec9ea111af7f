"""Markov kernels, one algorithm per file, and what one needs to write another."""

from phalanx.kernels.acceptance import decide as decide
from phalanx.kernels.kernel import Info as Info
from phalanx.kernels.kernel import Kernel as Kernel
from phalanx.kernels.kernel import Point as Point
from phalanx.kernels.vector import Vector as Vector
