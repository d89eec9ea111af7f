"""Pictures of the demos: matplotlib figures of posteriors, fits and ensembles."""
