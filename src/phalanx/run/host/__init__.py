"""The host's side of a run: draws that are stored block by block, and merged states of reducers."""
