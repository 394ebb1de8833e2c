"""The laboratory behind docs/results/exclusive.md: what a host cache saves beside guests that cache for themselves.

Cells (load x guest x size of the host cache) are run on several arms, one after the other, at equal host memory:
`cells` says which, `loads` what the guests do, `arms` how their disks are served, `runner` runs one cell, `measure`
counts, `perfect` computes what a perfectly exclusive cache would have saved, `store` keeps raw results, `derive` makes
figures of them, `reference` has the figures to compare with, `report` and `plots` show them.

Invariant: a report is made from stored results alone. No number in it is typed in by hand.
"""
