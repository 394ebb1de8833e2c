"""Databases in containers over the stores of Undercroft, the page cache and a peer: `make lab-stores`."""
