//! An array with an element for each slot, which grows and shrinks where it is, a few elements at a time.
//!
//! Owns its memory. Never moves many elements: past [`SMALL`] of them it takes room for as many as there may ever be,
//! which costs address space but no memory until it is used. Invariant: what lies past `held` elements has not been
//! touched since it was given back.
//!
//! Memory goes back to the kernel by whoever can do that ([`Release`]): this crate calls no kernel.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// Arrays of at most so many elements have exactly the memory they need: they are copied when they grow, and small
/// ones of many disks share pages.
const SMALL: usize = 1 << 16;
/// Bytes that a page has at most, as far as this file has to know: what is released overlaps by so much with what was,
/// so that no page between the two stays.
const PAGE_BYTES: usize = 4096;

/// Gives memory back to the kernel that an array holds and does not use.
pub trait Release {
    /// The whole pages in `spare` are to be given back; what they hold is lost.
    fn release<T>(&mut self, spare: &mut [MaybeUninit<T>]);
}

/// Keeps all memory, for those whose arrays have no more than they need.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Release for KeepAll {
    fn release<T>(&mut self, _spare: &mut [MaybeUninit<T>]) {}
}

/// See the head of the file.
#[derive(Debug)]
pub struct Array<T> {
    items: Vec<T>,
    /// Behind a pointer, since it is not asked for where elements are used. None if nobody said how many there may be.
    room: Option<Box<Room>>,
}

#[derive(Clone, Copy, Debug)]
struct Room {
    /// Elements that there may ever be.
    most: usize,
    /// Elements whose memory may be in use, where there is room for more than there are.
    held: usize,
}

impl<T> Deref for Array<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for Array<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T> Array<T> {
    /// An array of `len` elements, of which there may be `most` in time (0 if that is not known).
    pub(crate) fn new_with(len: usize, most: usize, fill: impl FnMut() -> T) -> Self {
        let mut array = Self { items: Vec::new(), room: None };
        array.reserve(most);
        array.stretch_with(len, len, fill);
        array
    }

    /// Elements to have memory for, if there are `len`.
    fn room(&self, len: usize) -> usize {
        let most = self.room.as_ref().map_or(0, |room| room.most);
        if len > SMALL { len.max(most) } else { len }
    }

    /// Whether there is room for more elements than there are, on purpose.
    fn is_roomy(&self) -> bool {
        self.room(self.items.len()) > self.items.len()
    }

    /// Elements whose memory may be in use.
    fn held(&self) -> usize {
        self.room.as_ref().map_or(0, |room| room.held).max(self.items.len())
    }

    fn set_held(&mut self, held: usize) {
        if let Some(room) = &mut self.room {
            room.held = held;
        }
    }

    /// There may be `most` elements in time; 0 if that is not known.
    pub fn reserve(&mut self, most: usize) {
        let len = self.items.len();
        self.room = (most > 0).then(|| Box::new(Room { most, held: len }));
        self.items.reserve_exact(self.room(len) - len);
    }

    /// Adds elements until there are `len`, on the way to `end`.
    pub fn stretch_with(&mut self, len: usize, end: usize, fill: impl FnMut() -> T) {
        let have = self.items.len();
        if len <= have {
            return;
        }
        if self.items.capacity() < len {
            self.items.reserve_exact(self.room(end.max(len)) - have);
        }
        self.items.resize_with(len, fill);
        self.set_held(self.held());
    }

    /// Cuts off all but `len` elements. Their memory stays until [`Array::release`] or [`Array::fit`].
    pub fn cut(&mut self, len: usize) {
        self.items.truncate(len);
    }

    /// Gives up memory that is there for more elements, unless there is on purpose.
    pub fn fit(&mut self) {
        if !self.is_roomy() {
            self.items.shrink_to_fit();
            self.set_held(self.items.len());
        }
    }

    /// Elements cut off whose memory has not been given back.
    fn unreleased(&self) -> usize {
        if self.is_roomy() { self.held() - self.items.len() } else { 0 }
    }

    /// Gives back memory of elements that were cut off, at most `bytes` of it; those are counted off.
    pub fn release(&mut self, by: &mut impl Release, bytes: &mut usize) {
        let some = self.unreleased().min(bytes.div_ceil(size_of::<T>()));
        if some == 0 {
            return;
        }
        *bytes = bytes.saturating_sub(some * size_of::<T>());
        let (len, end) = (self.items.len(), self.held());
        self.set_held(end - some);
        let spare = self.items.spare_capacity_mut();
        let past = (end - len + PAGE_BYTES / size_of::<T>()).min(spare.len());
        by.release(&mut spare[end - some - len..past]);
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        let elements = if self.is_roomy() { self.held() } else { self.items.capacity() };
        elements * size_of::<T>()
    }
}

impl<T> Array<T> {
    /// Takes over what somebody has made, of which there may be `most` in time.
    pub fn from_made(items: Vec<T>, most: usize) -> Self {
        let mut array = Self { items, room: None };
        array.reserve(most);
        array
    }

    /// Elements that [`Array::from_made`] should be given room for, if there are `len` of `most`.
    pub fn room_for(len: usize, most: usize) -> usize {
        if len > SMALL { len.max(most) } else { len }
    }
}

impl<T: Clone + Default> Array<T> {
    /// `len` elements of the type's default, of which there may be `most` in time (0 if that is not known). Where the
    /// default is zero no memory is taken: zeroes come from the kernel as they are touched.
    pub fn zeroed(len: usize, most: usize) -> Self {
        let room = if len > SMALL { len.max(most) } else { len };
        let mut array = Self { items: vec![T::default(); room], room: None };
        array.items.truncate(len);
        array.reserve(most);
        array
    }
}

impl<T: Clone> Array<T> {
    /// The same as [`Array::new_with`] with equal elements.
    pub fn new(len: usize, most: usize, fill: T) -> Self {
        if len > SMALL && most > len {
            return Self::new_with(len, most, || fill.clone());
        }
        // zeroes come from the kernel as they are touched
        let mut array = Self { items: vec![fill; len], room: None };
        array.reserve(most);
        array
    }

    /// Adds or cuts off elements until there are `len`, on the way to `end`.
    pub fn set_len(&mut self, len: usize, end: usize, fill: T) {
        if len < self.items.len() {
            self.cut(len);
        } else {
            self.stretch_with(len, end, || fill.clone());
        }
    }

    /// The same, all at once, with exactly the memory that takes.
    pub fn resize(&mut self, len: usize, fill: T) {
        self.set_len(len, len, fill);
        self.fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what is released, and from which elements on.
    #[derive(Default)]
    struct Seen(Vec<(usize, usize)>);

    impl Release for Seen {
        fn release<T>(&mut self, spare: &mut [MaybeUninit<T>]) {
            self.0.push((spare.as_ptr() as usize, size_of_val(spare)));
        }
    }

    #[test]
    fn a_large_array_grows_where_it_is_and_a_small_one_has_no_more_than_it_needs() {
        let mut array = Array::new(100, 1 << 20, 7u64);
        assert_eq!(array.memory_bytes(), 800);
        array.set_len(200, 300, 8);
        array.fit();
        assert_eq!((array.memory_bytes(), array[99], array[199]), (1600, 7, 8));
        array.set_len(SMALL + 1, SMALL + 1, 9);
        let at = array.as_ptr();
        array.set_len(1 << 20, 1 << 20, 10);
        assert_eq!((array.as_ptr(), array.memory_bytes()), (at, 8 << 20), "it has not moved");
        array.set_len(50, 50, 0);
        array.fit();
        assert_eq!((array.memory_bytes(), array[49]), (400, 7));
    }

    #[test]
    fn zeroes_are_as_many_as_asked_for_and_grow_where_they_are() {
        let mut array = Array::<u64>::zeroed(SMALL + 1, 1 << 20);
        assert!(array.len() == SMALL + 1 && array.iter().all(|&n| n == 0));
        let at = array.as_ptr();
        array.set_len(1 << 20, 1 << 20, 9);
        assert_eq!((array.as_ptr(), array[SMALL], array[SMALL + 1]), (at, 0, 9));
        assert_eq!(Array::<u8>::zeroed(10, 1 << 20).memory_bytes(), 10);
    }

    #[test]
    fn memory_is_given_back_from_the_end_in_steps_that_leave_no_page_out() {
        let mut array = Array::new(300_000, 400_000, 7u32);
        let start = array.as_ptr() as usize;
        array.cut(200_000);
        assert_eq!((array.unreleased(), array.memory_bytes()), (100_000, 1_200_000), "nothing is given back yet");
        let mut seen = Seen::default();
        while array.unreleased() > 0 {
            let mut bytes = 65_536;
            array.release(&mut seen, &mut bytes);
            assert!(bytes == 0 || array.unreleased() == 0);
        }
        assert_eq!(array.memory_bytes(), 800_000);
        let mut end = start + 1_200_000;
        for (at, len) in seen.0 {
            assert!(at >= start + 800_000 && len <= 65_536 + PAGE_BYTES, "bytes in use, or too many at once");
            assert_eq!(at + len, end + PAGE_BYTES, "a page between this step and the last one stays");
            end = at;
        }
        assert_eq!(end, start + 800_000);
        array.set_len(300_000, 300_000, 8);
        assert_eq!((array[199_999], array[200_000], array.as_ptr() as usize), (7, 8, start));
    }
}
