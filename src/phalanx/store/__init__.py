"""Files that outlive a process: archives, checkpoints and stores of draws, with a format version and without pickles.

In: parts of named arrays and JSON entries. Out: files; each error names the file and what is damaged, missing or newer.
An archive (`archive.py`) is one `.npz` file: a posterior or a fit. A checkpoint is a folder of saves (`saves.py`) with
a manifest each, made when a policy (`policy.py`) says so (`checkpoint.py`), and continued by a call of the same
identity (`identity.py`): of a run, archives; of a training or an ensemble, trees of arrays by Orbax. A store of draws
(`zarr_folder.py`) grows with a run; Zarr's own library writes its chunks, each process those of the chains that it
owns, and `zarr_reading.py` reads them. Read `archive.py` first, then `saves.py`, `checkpoint.py` and `zarr_folder.py`.
"""
