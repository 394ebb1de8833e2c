//! Frames: 4 KiB pages of memory that belong to the cache alone, handed out as unique handles, or shared for reading.
//!
//! Owns the address range they come from. Never hands the same page out twice, and never unmaps a range of which a page
//! is out: a handle stays valid for the life of the process. Invariant: `issued + free <= reserved`, and a page is
//! either behind exactly one `Frame`, or behind as many `Held` as its arena counts and immutable, or on its arena's
//! free list.

mod mapping;

use crate::shared_memory::SharedMemory;
use mapping::{bytes_of, release, reserve, unmap};
use std::fmt;
use std::io;
use std::ptr::NonNull;

/// Bytes in one frame, and in one cache block.
pub const FRAME_BYTES: usize = 4096;

/// The only handle to one page of an [`Arena`]; 8 bytes, so that `Option<Frame>` is too.
///
/// A frame must go back to the arena it came from with [`Arena::put`]; one that is dropped instead is lost, and
/// a debug build says so by panicking.
pub struct Frame(NonNull<[u8; FRAME_BYTES]>);

// SAFETY: a `Frame` is the only handle to its page, like a `Box`, and the page is not unmapped while it is out.
unsafe impl Send for Frame {}
// SAFETY: a shared `Frame` gives shared access only.
unsafe impl Sync for Frame {}

impl Frame {
    /// The page's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8; FRAME_BYTES] {
        // SAFETY: the page is mapped as long as it is out, initialised (zeroed by the kernel), and this
        // handle is the only one to it, so `&self` bounds every shared reference.
        unsafe { self.0.as_ref() }
    }

    /// The page's bytes, to write to.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8; FRAME_BYTES] {
        // SAFETY: as in `bytes`; `&mut self` excludes every other reference.
        unsafe { self.0.as_mut() }
    }

    /// Address of the page, for the kernel. Valid as long as the handle lives.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({:p})", self.0)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "a frame was dropped instead of returned to its arena");
    }
}

/// One of several handles to a page that nobody may change any more; 8 bytes, so that `Option<Held>` is too.
///
/// Made from a [`Frame`] by [`Arena::share`], multiplied by [`Arena::again`], given back by [`Arena::release`]; one
/// that is dropped instead keeps its page for ever, and a debug build says so by panicking.
#[repr(transparent)]
pub struct Held(NonNull<[u8; FRAME_BYTES]>);

/// `len` slots without a page, in memory with room for `room`: zeroes of the kernel's, which take none until they are
/// touched.
#[must_use]
pub fn empty_slots(len: usize, room: usize) -> Vec<Option<Held>> {
    let mut zeroes = std::mem::ManuallyDrop::new(vec![0usize; room.max(len)]);
    let (at, room) = (zeroes.as_mut_ptr(), zeroes.capacity());
    // SAFETY: an `Option` of a transparent non-null pointer has the size and alignment of a `usize`, and its `None` is
    // 0; the vector that had the memory is not dropped.
    unsafe { Vec::from_raw_parts(at.cast(), len, room) }
}

// SAFETY: the page behind a `Held` is not written while any handle to it exists, and is not unmapped while it is out.
unsafe impl Send for Held {}
// SAFETY: it gives shared access only.
unsafe impl Sync for Held {}

/// The page of every block of zeroes. It belongs to no arena.
#[repr(align(4096))]
struct ZeroPage([u8; FRAME_BYTES]);
static ZEROES: ZeroPage = ZeroPage([0; FRAME_BYTES]);

impl Held {
    /// The page of zeroes: it costs nobody any memory.
    pub fn zeroes() -> Held {
        Held(NonNull::from(&ZEROES.0))
    }

    /// Whether this is the page of zeroes.
    #[inline]
    pub fn is_zeroes(&self) -> bool {
        std::ptr::eq(self.0.as_ptr(), &ZEROES.0)
    }

    /// Whether both are handles to one page.
    #[inline]
    pub fn is_same(&self, other: &Held) -> bool {
        self.0 == other.0
    }

    /// The page's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8; FRAME_BYTES] {
        // SAFETY: the page is mapped for the life of the process and initialised; while a `Held` exists no `Frame` for
        // it does, so nobody has a mutable reference.
        unsafe { self.0.as_ref() }
    }

    /// Asks the processor to fetch the first lines of the page into its cache.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.0);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:p})", self.0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        debug_assert!(
            self.is_zeroes() || std::thread::panicking(),
            "a shared frame was dropped instead of released to its arena"
        );
    }
}

/// Asks the processor to fetch the first `LINES` lines of 64 bytes of a value into its cache, all at the same time.
#[inline]
pub fn prefetch_lines<const LINES: usize, T>(of: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching is a hint that never faults; whatever the lines hold, nothing of them is read or changed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let p = std::ptr::from_ref(of).cast::<i8>();
        for line in 0..LINES {
            _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(64 * line));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = of;
}

fn prefetch(page: NonNull<[u8; FRAME_BYTES]>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching is a hint and the address is mapped.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let p = page.as_ptr().cast::<i8>();
        _mm_prefetch::<_MM_HINT_T0>(p);
        _mm_prefetch::<_MM_HINT_T0>(p.add(64));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = page;
}

/// A reserved range of address space that frames are taken from and returned to, by one owner.
///
/// Memory is committed by first use and given back to the kernel by [`Arena::trim`].
pub struct Arena {
    base: NonNull<u8>,
    reserved: usize,
    /// Per page: how many [`Held`] there are.
    holders: Vec<u16>,
    /// Pages `fresh..reserved` have never been handed out.
    fresh: usize,
    /// Numbers of the returned pages, oldest first: 4 bytes a page, and there is room for all from the start.
    free: Vec<u32>,
    /// The first so many of them are cold: their memory was given back to the kernel. Invariant: `cold <= free.len()`.
    cold: usize,
    /// The memory, if another process can go on with it.
    memory: Option<SharedMemory>,
    /// Nothing is taken and no memory given back: another process may have it.
    frozen: bool,
    /// Which pages were claimed of those that another process has left; `None` once it is known what is free.
    claimed: Option<Vec<bool>>,
}

// SAFETY: the pointers name pages that only this arena and the frames it issued may touch.
unsafe impl Send for Arena {}

impl Arena {
    /// Reserves address space for `frames` frames; commits none of it.
    ///
    /// # Errors
    /// What `mmap` says, for instance that the address space or the over-commit limit does not allow it.
    pub fn new(frames: usize) -> io::Result<Self> {
        let reserved = frames.max(1);
        let base = reserve(bytes_of(reserved)?)?;
        Ok(Self::over(base, reserved, None))
    }

    /// The same in memory that another process can go on with ([`Arena::memory`]).
    ///
    /// # Errors
    /// As for [`Arena::new`].
    pub fn new_shared(frames: usize) -> io::Result<Self> {
        let reserved = frames.max(1);
        let memory = SharedMemory::new(bytes_of(reserved)?)?;
        let base = memory.map()?;
        Ok(Self::over(base, reserved, Some(memory)))
    }

    /// Goes on with the memory of another process that has left it. Nothing can be taken until every frame that holds
    /// something was claimed ([`Arena::claim`]) and the rest is free ([`Arena::settle`]).
    ///
    /// # Errors
    /// It is not the memory of an arena of so many frames, or what `mmap` says.
    pub fn adopt(memory: SharedMemory, frames: usize) -> io::Result<Self> {
        let reserved = frames.max(1);
        if memory.bytes() != bytes_of(reserved)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory is that of a store of another size"));
        }
        let base = memory.map()?;
        let mut arena = Self::over(base, reserved, Some(memory));
        arena.fresh = reserved;
        arena.claimed = Some(vec![false; reserved]);
        Ok(arena)
    }

    fn over(base: NonNull<u8>, reserved: usize, memory: Option<SharedMemory>) -> Self {
        let (holders, free) = (vec![0; reserved], Vec::with_capacity(reserved));
        Self { base, reserved, holders, fresh: 0, free, cold: 0, memory, frozen: false, claimed: None }
    }

    /// The memory, for another process to go on with; `None` if that cannot be.
    pub fn memory(&self) -> Option<&SharedMemory> {
        self.memory.as_ref()
    }

    /// From now on nothing is taken and no memory given back, whatever is returned: another process may go on with it.
    /// Or that again: it has not.
    pub fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Page `n` as another process has left it; `None` if there is no such page, it was claimed before, or nothing is
    /// to be claimed.
    pub fn claim(&mut self, n: u32) -> Option<Frame> {
        let claimed = self.claimed.as_mut()?.get_mut(n as usize)?;
        (!std::mem::replace(claimed, true)).then(|| Frame(self.page(n)))
    }

    /// Whether it is not known yet what is free of what another process has left.
    pub fn is_claimed_from(&self) -> bool {
        self.claimed.is_some()
    }

    /// What was not claimed is free, and its memory goes back to the kernel.
    pub fn settle(&mut self) {
        let Some(claimed) = self.claimed.take() else { return };
        self.fresh = claimed.iter().rposition(|&c| c).map_or(0, |last| last + 1);
        if self.fresh < self.reserved {
            self.give_back(self.fresh as u32, self.reserved - self.fresh);
        }
        // A page that was claimed may have come back already.
        self.free.extend((0..self.fresh as u32).filter(|&n| !claimed[n as usize]));
        self.trim(0);
    }

    /// Frames that could still be taken.
    pub fn available(&self) -> usize {
        self.reserved - self.fresh + self.free.len()
    }

    /// Frames reserved in all.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// Takes a frame; its content is whatever was there before. `None` when all are out.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        // One whose memory was given back before one that never had any: so numbers stay as low as can be.
        let Some(n) = self.free.pop_if(|_| !self.frozen && self.claimed.is_none()) else {
            if self.fresh == self.reserved || self.frozen {
                return None;
            }
            self.fresh += 1;
            return Some(Frame(self.page(self.fresh as u32 - 1)));
        };
        self.cold = self.cold.min(self.free.len());
        Some(Frame(self.page(n)))
    }

    #[inline]
    fn page(&self, n: u32) -> NonNull<[u8; FRAME_BYTES]> {
        debug_assert!((n as usize) < self.reserved);
        // SAFETY: only numbers below `reserved` are handed in, so the page is inside the mapping.
        unsafe { self.base.add(n as usize * FRAME_BYTES) }.cast()
    }

    /// Returns a frame.
    ///
    /// # Panics
    /// If the frame is not one of this arena's: a bug in the caller.
    #[inline]
    pub fn put(&mut self, frame: Frame) {
        let n = self.number(frame.0);
        std::mem::forget(frame);
        self.free.push(n);
    }

    /// The number of one of this arena's pages.
    #[inline]
    fn number(&self, page: NonNull<[u8; FRAME_BYTES]>) -> u32 {
        let at = page.as_ptr() as usize;
        let base = self.base.as_ptr() as usize;
        assert!(at >= base && at < base + self.reserved * FRAME_BYTES, "a frame came back to another arena");
        ((at - base) / FRAME_BYTES) as u32
    }

    /// Makes a frame immutable: from now on it may have several holders.
    ///
    /// # Panics
    /// If the frame is not one of this arena's: a bug in the caller.
    #[inline]
    pub fn share(&mut self, frame: Frame) -> Held {
        let n = self.number(frame.0);
        debug_assert!(self.holders[n as usize] == 0, "a frame with holders was a frame of its own as well");
        self.holders[n as usize] = 1;
        let held = Held(frame.0);
        std::mem::forget(frame);
        held
    }

    /// One more handle to a shared page; `None` if it has 65,535 already.
    ///
    /// # Panics
    /// If the page is not one of this arena's: a bug in the caller.
    #[inline]
    pub fn again(&mut self, held: &Held) -> Option<Held> {
        if !held.is_zeroes() {
            let n = self.number(held.0) as usize;
            self.holders[n] = self.holders[n].checked_add(1)?;
        }
        Some(Held(held.0))
    }

    /// One more handle to the shared page number `n`; `None` if it has no holder, or 65,535.
    #[inline]
    pub fn again_number(&mut self, n: u32) -> Option<Held> {
        let holders = self.holders.get_mut(n as usize).filter(|h| **h > 0)?;
        *holders = holders.checked_add(1)?;
        Some(Held(self.page(n)))
    }

    /// Whether the shared page number `n` has the same bytes as `held`; false if it has no holder.
    pub fn is_equal(&self, n: u32, held: &Held) -> bool {
        if self.holders.get(n as usize).is_none_or(|&h| h == 0) {
            return false;
        }
        // SAFETY: the page has a `Held`, so nobody has a mutable reference to it, and no handle can go before this
        // call ends: giving one back needs the arena mutably.
        let page = unsafe { self.page(n).as_ref() };
        page == held.bytes()
    }

    /// Gives a handle back; with the last one the page is free. Returns how many are left.
    ///
    /// # Panics
    /// If the page is not one of this arena's: a bug in the caller.
    #[inline]
    pub fn release(&mut self, held: Held) -> u32 {
        if held.is_zeroes() {
            return 0;
        }
        let n = self.number(held.0);
        std::mem::forget(held);
        let left = &mut self.holders[n as usize];
        *left -= 1;
        if *left == 0 {
            self.free.push(n);
        }
        u32::from(*left)
    }

    /// How many handles there are to a shared page; 0 for the page of zeroes.
    #[inline]
    pub fn holders(&self, held: &Held) -> u32 {
        if held.is_zeroes() { 0 } else { u32::from(self.holders[self.number(held.0) as usize]) }
    }

    /// The number of a shared page, `0..reserved`, for tables beside the arena; `None` for the page of zeroes.
    #[inline]
    pub fn number_of(&self, held: &Held) -> Option<u32> {
        (!held.is_zeroes()).then(|| self.number(held.0))
    }

    /// Gives the memory of all but `keep` of the returned frames back to the kernel. Returns how many bytes.
    pub fn trim(&mut self, keep: usize) -> usize {
        if self.frozen || self.claimed.is_some() {
            return 0;
        }
        let cold = self.free.len().saturating_sub(keep).max(self.cold);
        // In order, so that neighbours go in one call: each call interrupts every processor that runs a thread of ours.
        self.free[self.cold..cold].sort_unstable();
        let mut run: Option<(u32, usize)> = None;
        for i in self.cold..cold {
            let n = self.free[i];
            run = match run {
                Some((first, pages)) if first as usize + pages == n as usize => Some((first, pages + 1)),
                Some((first, pages)) => {
                    self.give_back(first, pages);
                    Some((n, 1))
                }
                None => Some((n, 1)),
            };
        }
        if let Some((first, pages)) = run {
            self.give_back(first, pages);
        }
        let bytes = (cold - self.cold) * FRAME_BYTES;
        self.cold = cold;
        bytes
    }

    /// Gives the memory of `pages` free neighbours back, `first` and those after it.
    fn give_back(&self, first: u32, pages: usize) {
        release(self.page(first), pages, self.memory.is_some());
    }

    /// Returned frames whose memory is still committed: what [`Arena::trim`] could give back.
    pub fn warm(&self) -> usize {
        self.free.len() - self.cold
    }

    /// Bytes of memory committed to frames, in use or ready for use.
    pub fn committed_bytes(&self) -> usize {
        (self.fresh - self.cold) * FRAME_BYTES
    }
}

impl Drop for Arena {
    /// The address space goes back where every page has come back; where one is still out, it stays mapped for ever.
    fn drop(&mut self) {
        if self.available() == self.reserved {
            unmap(self.base, self.reserved);
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("reserved", &self.reserved).field("available", &self.available()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel lets a process have 65,530 mappings unless told otherwise.
    #[cfg(not(miri))]
    #[test]
    fn address_space_goes_back_with_the_last_page_and_stays_under_one_that_is_out() {
        for _ in 0..70_000 {
            let mut all_back = Arena::new_shared(2).expect("those before it are unmapped");
            let page = all_back.take().unwrap();
            all_back.freeze(true);
            all_back.put(page);
        }
        for arena in [Arena::new, Arena::new_shared] {
            let mut one_out = arena(2).unwrap();
            let mut page = one_out.take().unwrap();
            drop(one_out);
            page.bytes_mut().fill(1);
            std::mem::forget(page);
        }
    }

    #[test]
    fn a_shared_page_is_found_by_its_number_while_somebody_holds_it() {
        let mut a = Arena::new(2).unwrap();
        let mut f = a.take().unwrap();
        f.bytes_mut().fill(7);
        let mut g = a.take().unwrap();
        g.bytes_mut().fill(7);
        let (f, g) = (a.share(f), a.share(g));
        let n = a.number_of(&f).unwrap();
        assert!(a.is_equal(n, &g) && a.is_equal(n, &f));
        let again = a.again_number(n).unwrap();
        assert!(again.is_same(&f) && a.holders(&f) == 2);
        a.release(f);
        a.release(again);
        assert!(a.again_number(n).is_none() && !a.is_equal(n, &g), "nobody holds it any more");
        assert!(a.again_number(99).is_none());
        a.release(g);
    }

    #[test]
    fn every_frame_is_handed_out_once() {
        let mut a = Arena::new(3).unwrap();
        let mut f: Vec<Frame> = (0..3).map(|_| a.take().unwrap()).collect();
        assert!(a.take().is_none());
        for (i, f) in f.iter_mut().enumerate() {
            f.bytes_mut().fill(i as u8 + 1);
        }
        for (i, f) in f.iter().enumerate() {
            assert!(f.bytes().iter().all(|&b| b == i as u8 + 1));
        }
        f.drain(..).for_each(|f| a.put(f));
        assert_eq!(a.available(), 3);
    }

    #[test]
    fn a_shared_page_is_free_with_its_last_holder() {
        let mut a = Arena::new(2).unwrap();
        let mut f = a.take().unwrap();
        f.bytes_mut().fill(7);
        let one = a.share(f);
        let two = a.again(&one).unwrap();
        assert!(one.is_same(&two) && two.bytes()[4095] == 7);
        assert_eq!((a.holders(&one), a.available()), (2, 1));
        assert_eq!(a.release(one), 1);
        assert_eq!((a.available(), two.bytes()[0]), (1, 7));
        assert_eq!(a.release(two), 0);
        assert_eq!(a.available(), 2);
    }

    #[test]
    fn the_page_of_zeroes_belongs_to_nobody() {
        let mut a = Arena::new(1).unwrap();
        let zero = Held::zeroes();
        let again = a.again(&zero).unwrap();
        assert!(again.is_zeroes() && again.bytes().iter().all(|&b| b == 0));
        assert_eq!((a.holders(&zero), a.number_of(&zero)), (0, None));
        assert_eq!((a.release(zero), a.release(again), a.available()), (0, 0, 1));
    }

    #[test]
    fn trim_gives_memory_back_and_frames_stay_usable() {
        let mut a = Arena::new(4).unwrap();
        let f: Vec<Frame> = (0..4).map(|_| a.take().unwrap()).collect();
        f.into_iter().for_each(|f| a.put(f));
        assert_eq!(a.trim(1), 3 * FRAME_BYTES);
        assert_eq!(a.committed_bytes(), FRAME_BYTES);
        let f: Vec<Frame> = (0..4).map(|_| a.take().unwrap()).collect();
        assert!(a.take().is_none());
        f.into_iter().for_each(|f| a.put(f));
    }

    #[cfg(not(miri))]
    #[test]
    fn trim_gives_back_the_free_pages_and_no_others() {
        let mut a = Arena::new(64).unwrap();
        let mut all: Vec<Frame> = (0..64).map(|_| a.take().unwrap()).collect();
        all.iter_mut().enumerate().for_each(|(i, f)| f.bytes_mut().fill(i as u8 + 1));
        // Neighbours and single pages, given back in no order.
        let gone = [40, 3, 9, 41, 8, 63, 10, 0, 42];
        let mut kept = Vec::new();
        for (i, f) in all.into_iter().enumerate() {
            if gone.contains(&i) { a.put(f) } else { kept.push((i, f)) }
        }
        assert_eq!(a.trim(0), gone.len() * FRAME_BYTES);
        assert!(kept.iter().all(|(i, f)| f.bytes().iter().all(|&b| b == *i as u8 + 1)), "a page in use was given back");
        let again: Vec<Frame> = gone.iter().map(|_| a.take().unwrap()).collect();
        assert!(again.iter().all(|f| f.bytes().iter().all(|&b| b == 0)), "a page was not given back");
        kept.into_iter().map(|(_, f)| f).chain(again).for_each(|f| a.put(f));
    }

    #[test]
    #[should_panic(expected = "another arena")]
    fn a_frame_of_another_arena_is_refused() {
        let (mut a, mut b) = (Arena::new(1).unwrap(), Arena::new(1).unwrap());
        let f = a.take().unwrap();
        b.put(f);
    }
}
