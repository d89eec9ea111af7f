"""Training: the loop of gradient steps of fits and ensembles.

In: a method (`init, step, done`), an objective, data. Out: the method's last state. Also batches of rows, the log and
checkpoint of a training, climbs to a maximum, and the cache of compiled programs. Read `loop.py` first, then
`watch.py`.

The package is called `learning` because `phx.training` is a public function.
"""
