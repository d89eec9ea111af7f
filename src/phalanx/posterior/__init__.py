"""The posterior: draws and statistics, what is made of them, files, and the record of the run."""
