"""What people see first: the comparison beside one guest, with drivers in place of guests, and with two guests on
clones."""
