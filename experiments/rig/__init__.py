"""What the demo, the laboratory and the tests with real guests share: guests, ways to serve disks, what is measured.

Needs Python 3.11 and nothing else (the plots apart). Everything that is started ends with its owner: each class here is
a context manager, and children die with this process however it ends.
"""
