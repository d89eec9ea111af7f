"""The headline workloads, one file each: model, data, run, picture. `phalanx demo NAME` runs one."""
