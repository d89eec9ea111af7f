"""Training: the loop of gradient steps of fits and ensembles, with all that they share.

In: a method (`init, step, done`), an objective, data. Out: the method's last state. Here are the loop, batches of rows,
the log and checkpoint of a training and the identity it is recognised by, climbs to a maximum, and the cache of
compiled programs. Read `loop.py` first, then `watch.py`.

The package is called `learning` because `phx.training` is a public function.
"""
