"""Programs of random variables: tracing, handlers, joint densities, and targets for inference."""
