"""Guests on one way of serving their disks: the one way in which the demo and the laboratory start an arm.

Owns the order in which things start, and the moment at which all guests begin what is measured. Never knows what is
counted: it is given a function that takes the counters. Invariant: guests whose work has failed do not keep the others
waiting.
"""

import concurrent.futures
import threading

from . import guest as guests
from .process import Stopped

PHASE_SECONDS = 900


class Fleet:
    """One arm while it runs: `way` serves the disks, and each guest has as many of them as `way.disks_each` says."""

    def __init__(self, way, folder, ram_mib, accel, screen):
        self.way, self.folder, self.ram_mib, self.accel, self.screen = way, folder, ram_mib, accel, screen
        self.guests = []

    def start(self, stack, disks, kernel_options="", **guest_options):
        """Serves `disks` and boots the guests, with what else `Guest` is to be told; `stack` ends all of it."""
        stack.enter_context(self.way)
        self.way.start(disks)
        each = self.way.disks_each
        self.screen.status(
            "guests", f"{self.way.title:16} booting {len(disks) // each} of {self.ram_mib} MiB ({self.accel})"
        )
        for i in range(len(disks) // each):
            arguments = [argument for disk in range(i * each, (i + 1) * each) for argument in self.way.disk_args(disk)]
            guest = guests.Guest(
                f"{self.way.key}-guest-{i + 1}", arguments, self.folder, self.ram_mib, self.accel,
                wrap=self.way.wrap_guest, append=kernel_options, check=self.way.check, private=self.way.private_ram,
                **guest_options,
            )  # fmt: skip
            self.guests.append(stack.enter_context(guest))
        for guest in self.guests:
            guest.wait_ready()
        self.way.guests_ready(self.guests)

    def together(self, what, commands, take, begins=lambda: None):
        """Runs the workload program in several guests at once, `commands` being (guest, command). Returns their
        results, and what `take` counted before and after the measured part, which they begin together: after
        `begins`."""
        barrier = threading.Barrier(len(commands) + 1)

        def drive(guest, command):
            result = None
            try:
                for event in guest.events(command, PHASE_SECONDS):
                    if event["event"] == "progress":
                        self.show(what, guest, event)
                    elif event["event"] == "ready":
                        barrier.wait()
                        barrier.wait()
                        guest.send("go")
                    elif event["event"] == "done":
                        result = event
                barrier.wait()
            except BaseException:
                barrier.abort()
                raise
            return result

        with concurrent.futures.ThreadPoolExecutor(len(commands)) as pool:
            futures = [pool.submit(drive, *command) for command in commands]
            try:
                barrier.wait()
                before = take()
                begins()
                barrier.wait()
                barrier.wait()
                after = take()
            except BaseException as e:
                barrier.abort()
                # Guests that are still running would keep the pool waiting.
                for guest, _ in commands:
                    guest.close()
                if not isinstance(e, threading.BrokenBarrierError):
                    raise
                for future in concurrent.futures.as_completed(futures):
                    error = future.exception()
                    if error and not isinstance(error, threading.BrokenBarrierError):
                        raise error from None
                raise Stopped(f"{what}, {self.way.title}: the guests did not finish together") from None
            return [future.result() for future in futures], before, after

    def show(self, what, guest, event):
        """Shows how far a guest's workload program is."""
        done = event["done"] / event["of"]
        self.screen.status(
            guest.name,
            f"{what} {event['phase']:9} {done:4.0%}  {event['mib_per_s']:6.1f} MiB/s, "
            f"{event['cached_share']:4.0%} from its own RAM, else {event['disk_p50_us']:.0f} us",
        )

    def power_off(self):
        """Ends all guests in order; their file systems must have been unmounted."""
        for guest in self.guests:
            guest.power_off()
