"""Programs of random variables: tracing, handlers, joint densities, and targets for inference."""

from phalanx.programs.constants import read_arrays_anew

read_arrays_anew()  # before any program is traced
