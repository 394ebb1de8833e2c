"""What the tests with real programs share: the daemon, the driver, images, other servers."""
