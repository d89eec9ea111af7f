"""Programs that learn: guides, objectives, and the fit of one to a model's posterior."""
