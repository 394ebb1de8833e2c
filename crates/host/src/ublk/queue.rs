//! The queue of a device: requests come out of it, results go in.
//!
//! Owns the device's node, a ring, and the descriptors that the kernel writes. Never answers by itself. Invariants: a
//! command is with the kernel at most once for each tag; no command names memory of this process; one thread serves the
//! queue, the one that began it.

use super::server_path;
use super::wire::{DESCRIPTOR_BYTES, command, data_offset, io as io_command};
use crate::wait::EventFd;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A request as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// See [`super::operation`].
    pub operation: u8,
    /// Flags of the operation, at the places that they have there.
    pub flags: u32,
    /// Sectors of 512 bytes.
    pub sectors: u32,
    /// The first of them.
    pub start_sector: u64,
}

/// Descriptors, mapped for reading.
struct Descriptors {
    base: *const u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only read.
unsafe impl Send for Descriptors {}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: it was mapped with these bytes, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base as *mut c_void, self.bytes) };
    }
}

/// See the head of the file.
pub struct UblkQueue {
    ring: IoUring,
    node: File,
    descriptors: Descriptors,
    depth: u16,
    event: EventFd,
    /// Entries in the submission queue that the kernel has not taken.
    unsubmitted: usize,
}

impl UblkQueue {
    /// Opens the queue of a device that was made, or whose recovery has begun. Nothing is asked of the kernel yet, and
    /// any thread may do this.
    ///
    /// # Errors
    /// `ResourceBusy` if another process has it; what the kernel says of memory and rings.
    pub fn open(id: u32, depth: u16) -> io::Result<Self> {
        let node = OpenOptions::new().read(true).write(true).open(server_path(id))?;
        let page = crate::FRAME_BYTES;
        let bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(page);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &node, 0)? };
        let descriptors = Descriptors { base: base.cast_const().cast(), bytes };
        let mut builder = IoUring::builder();
        // The thread that begins is the only one that submits; the kernel does nothing on it but when it is asked to.
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        builder.setup_submit_all().setup_cqsize(2 * u32::from(depth));
        let ring = builder.build(u32::from(depth).next_power_of_two())?;
        let event = EventFd::new()?;
        ring.submitter().register_eventfd(event.as_fd().as_raw_fd())?;
        Ok(Self { ring, node, descriptors, depth, event, unsubmitted: 0 })
    }

    /// Tags that there are.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Begins to ask for requests, all tags at once. From now on this thread serves the queue.
    ///
    /// The kernel looks for partitions of a device only if whoever began its queue may administrate the machine; what a
    /// disk holds is its guest's, and no table of partitions for the host. So this thread gives the right up meanwhile.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn begin(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        for tag in 0..self.depth {
            self.push(command::FETCH_REQ, tag, 0);
        }
        let rights = capabilities(None)?;
        let mut fewer = rights;
        fewer.effective.remove(CapabilitySet::SYS_ADMIN);
        let has_given_up = set_capabilities(None, fewer).is_ok();
        let result = self.submit();
        if has_given_up {
            set_capabilities(None, rights)?;
        }
        result
    }

    fn push(&mut self, op: u32, tag: u16, result: i32) {
        let fd = types::Fd(self.node.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, op).cmd(io_command(tag, result)).build().user_data(tag.into());
        // SAFETY: the command names no memory, and the node is open as long as the ring is.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // There are as many entries as tags, and each tag has one command at most.
        assert!(pushed.is_ok(), "a queue with room for all tags refused a command");
        self.unsubmitted += 1;
    }

    /// Answers a request, and asks for the next one of its tag, once `submit` is called: bytes that were moved, or a
    /// number of errno below 0.
    ///
    /// # Panics
    /// If there is no such tag, or more than one answer for each tag was given since the last `submit`.
    #[inline]
    pub fn answer(&mut self, tag: u16, result: i32) {
        assert!(tag < self.depth, "an answer to a request that cannot be");
        self.push(command::COMMIT_AND_FETCH_REQ, tag, result);
    }

    /// Hands answers to the kernel.
    ///
    /// # Errors
    /// What the kernel says; they are handed over by the next call then.
    #[inline]
    pub fn submit(&mut self) -> io::Result<()> {
        while self.unsubmitted > 0 {
            match self.ring.submit() {
                Ok(0) => break,
                Ok(n) => self.unsubmitted -= n.min(self.unsubmitted),
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Answers that the kernel has not taken.
    pub fn unsubmitted(&self) -> usize {
        self.unsubmitted
    }

    /// A command that the kernel has done with: its tag, and 0 if there is a request, else a number of errno below 0.
    #[inline]
    pub fn take_done(&mut self) -> Option<(u16, i32)> {
        loop {
            if let Some(done) = self.ring.completion().next() {
                return Some((done.user_data() as u16, done.result()));
            }
            let waits = self.waits_inside();
            // Only an entry into the kernel brings them out.
            if !waits || self.ring.submitter().submit_with_args(0, &types::SubmitArgs::new()).is_err() {
                return None;
            }
            if self.ring.completion().is_empty() {
                return None;
            }
        }
    }

    fn waits_inside(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether `take_done` would have something.
    #[inline]
    pub fn has_done(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.waits_inside()
    }

    /// What the kernel asks, of a tag that `take_done` has named.
    ///
    /// # Panics
    /// If there is no such tag.
    #[inline]
    pub fn request(&self, tag: u16) -> Request {
        assert!(tag < self.depth, "a request that cannot be");
        let base = self.descriptors.base.wrapping_add(usize::from(tag) * DESCRIPTOR_BYTES);
        // SAFETY: the place is within the mapping, which has room for all tags, and aligned to eight bytes. The kernel
        // may write there at any time, so that it is read once, and never referred to.
        let [flags, sectors] = unsafe { base.cast::<[u32; 2]>().read_volatile() };
        // SAFETY: as above.
        let start_sector = unsafe { base.wrapping_add(8).cast::<u64>().read_volatile() };
        Request { operation: flags as u8, flags: flags & !0xff, sectors, start_sector }
    }

    /// Copies data that a request brings, from byte `at` of it on.
    ///
    /// # Errors
    /// What the kernel says; `IO` if there are fewer bytes.
    #[inline]
    pub fn take_data(&self, tag: u16, at: usize, to: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            done += moved(rustix::io::pread(&self.node, &mut to[done..], data_offset(tag, at + done)))?;
        }
        Ok(())
    }

    /// Copies data to whoever has asked for them, to byte `at` of the request on.
    ///
    /// # Errors
    /// What the kernel says; `IO` if there is room for fewer bytes.
    #[inline]
    pub fn give_data(&self, tag: u16, at: usize, from: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            done += moved(rustix::io::pwrite(&self.node, &from[done..], data_offset(tag, at + done)))?;
        }
        Ok(())
    }

    /// Becomes readable, edge-triggered, when there is something for `take_done`.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn moved(result: Result<usize, Errno>) -> Result<usize, Errno> {
    match result {
        Ok(0) => Err(Errno::IO),
        Err(Errno::INTR) => Ok(0),
        other => other,
    }
}
