"""The parts of the demo, which the tests with real guests use too: guests, ways to serve disks, what is measured.

Needs Python 3.11 and nothing else (the plots apart). Everything that is started ends with its owner: each class here is
a context manager, and children die with this process however it ends.
"""
