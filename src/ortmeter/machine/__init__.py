"""The machine: what it is, whether it is quiet, what it can do at most."""
