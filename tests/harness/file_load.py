"""A load on a file that is open for all of its life, and that knows what every byte must be.

Owns its threads and a copy of the file. Invariant: an error, or a byte that is not what was written, is told by
`finish`, whichever thread met it.
"""

import os
import random
import threading
import time

LENGTHS = [512, 4096, 4097, 16384, 65536, 300_000]
LONGEST = 1 << 20
SECTOR = 512


class FileLoad:
    """Threads that read and write, each in a part of its own of the first `size` bytes, all of them zeroes. With
    `direct`, past the page cache, in sectors."""

    def __init__(self, path, size, threads=4, seed=1, direct=False):
        self.fd = os.open(path, os.O_RDWR | (os.O_DIRECT if direct else 0))
        self.unit = SECTOR if direct else 1
        self.size, self.copy = size, bytearray(size)
        self.done, self.errors, self.over, self.longest = [0] * threads, [], False, 0.0
        parts = [(n * (size // threads), size // threads) for n in range(threads)]
        self.threads = [
            threading.Thread(target=self._run, args=(n, *part, random.Random(seed * 100 + n)), daemon=True)
            for n, part in enumerate(parts)
        ]
        [t.start() for t in self.threads]

    def _run(self, n, begin, length, dice):
        try:
            while not self.over and not self.errors:
                start = time.monotonic()
                self._one(begin, length, dice)
                self.longest = max(self.longest, time.monotonic() - start)
                self.done[n] += 1
        except BaseException as e:  # noqa: BLE001 - told by `finish`
            self.errors.append(e)

    def _one(self, begin, length, dice):
        many = LONGEST if dice.random() < 0.03 else dice.choice(LENGTHS)
        many -= many % self.unit
        at = begin + dice.randrange(0, length - many, self.unit)
        throw = dice.random()
        if throw < 0.55:
            data = dice.randbytes(many)
            assert os.pwrite(self.fd, data, at) == many
            self.copy[at : at + many] = data
        elif throw < 0.57:
            os.fsync(self.fd)
        elif throw < 0.6:
            # What is told of it comes over the same connection.
            assert self.unit > 1 or os.fstat(self.fd).st_size >= self.size
        else:
            assert os.pread(self.fd, many, at) == self.copy[at : at + many], f"{many} bytes at {at}"

    def alive(self):
        """Nothing went wrong so far."""
        assert not self.errors, self.errors
        return True

    def goes_on(self):
        """Whether each thread does something from now on, at least once."""
        before = list(self.done)
        return lambda: self.alive() and all(now > was + 1 for now, was in zip(self.done, before, strict=True))

    def finish(self):
        """Ends it, and reads all of the file."""
        self.over = True
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a request has no answer"
        self.alive()
        assert os.pread(self.fd, LONGEST, 0) == self.copy[:LONGEST]
        for at in range(0, self.size, LONGEST):
            assert os.pread(self.fd, LONGEST, at) == self.copy[at : at + LONGEST], f"at {at}"
        os.close(self.fd)
        print(f"{sum(self.done)} operations, the longest {self.longest * 1000:.0f} ms")
