"""The models of posteriordb whose posteriors are known from 10,000 reference draws each.

A model is a file: the program, how its data come from the stored ones, and which of its variables the reference knows.
`python -m tests.statistical.posteriordb [names]` runs them and prints how well they agree.

Source: M. Magnusson, J. Torgander, P.-C. Bürkner, L. Zhang, B. Carpenter, A. Vehtari (2025), posteriordb: Testing,
Benchmarking and Developing Bayesian Inference Algorithms. Data and reference draws: BSD-3.
"""
