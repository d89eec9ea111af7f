"""Pictures of the demos: matplotlib figures of draws, fits and ensembles, one file per demo."""
