"""Files that outlive a process: archives, checkpoints and stores of draws, with a format version and without pickles.

In: parts of named arrays and JSON entries. Out: files; each error names the file and what is damaged, missing or newer.
An archive (`archive.py`) is one `.npz` file: a posterior or a fit. A checkpoint (`checkpoint.py`) is a sealed folder: a
training under way, or an ensemble. The saves of a run (`saves.py`) are archives in a folder, with a manifest each. A
store of draws (`zarr_folder.py`) grows with a run; Zarr's own library writes its chunks. Read these four first.

An ensemble is a sealed folder, not an archive: training writes to the same folder again and again, new states first and
the index last, and networks are saved by Orbax, array by array, in one format with the checkpoints of fits.
"""
