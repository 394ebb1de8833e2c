"""What shares that follow the load are worth, on a live daemon: `make lab-shares`.

Owns the experiments, their results and the report on them. Never makes guests: the driver's clients and a kernel's
build are the load.
"""
