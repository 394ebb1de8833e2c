"""RAM over an SSD on the traces of ../shared, simulated with the daemon's own stores."""
