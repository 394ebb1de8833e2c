//! An array of equal elements that is made in steps, and whose memory goes in steps.
//!
//! Owns its memory until it is made. Never touches what a step has no time for. Invariant: the first `made` elements
//! are as they are to be; those behind them may be what somebody else left there, or none.

use crate::structures::array::Release;

/// Bytes of a page at most, as far as this file has to know: what is released overlaps by so much with what was, so
/// that no page between the two stays.
const PAGE_BYTES: usize = 4096;

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Blank<T> {
    items: Vec<T>,
    element: T,
    /// Elements that there are to be.
    len: usize,
    made: usize,
    /// Elements whose memory was given back.
    gone: usize,
}

impl<T: Copy> Blank<T> {
    /// `len` elements, of which none is made.
    pub fn new(len: usize, element: T) -> Self {
        Self { items: Vec::with_capacity(len), element, len, made: 0, gone: 0 }
    }

    /// As many elements as there are here, in the same memory.
    pub fn over(items: Vec<T>, element: T) -> Self {
        Self { len: items.len(), items, element, made: 0, gone: 0 }
    }

    /// Goes on with making it, at most `bytes` bytes, which are counted off. Whether all is made.
    pub fn make(&mut self, bytes: &mut usize) -> bool {
        let some = (self.len - self.made).min(*bytes / size_of::<T>());
        *bytes -= some * size_of::<T>();
        let (from, to) = (self.made, self.made + some);
        let there = to.min(self.items.len());
        self.items[from..there].fill(self.element);
        if to > there {
            self.items.resize(to, self.element);
        }
        (self.made, self.gone) = (to, 0);
        self.made == self.len
    }

    /// Goes on with giving its memory back, at most `bytes` bytes, which are counted off. Whether all has gone; what
    /// was made is lost.
    pub fn give_back(&mut self, by: &mut impl Release, bytes: &mut usize) -> bool {
        self.items.clear();
        self.made = 0;
        let spare = self.items.spare_capacity_mut();
        let some = (spare.len() - self.gone).min(*bytes / size_of::<T>());
        if some > 0 {
            *bytes -= some * size_of::<T>();
            let overlap = self.gone.min(PAGE_BYTES / size_of::<T>());
            by.release(&mut spare[self.gone - overlap..self.gone + some]);
            self.gone += some;
        }
        self.gone == spare.len()
    }

    /// The memory alone, for as many elements as were to be.
    pub fn into_empty(mut self) -> Vec<T> {
        self.items.clear();
        self.items
    }

    /// The array, of which all is made.
    ///
    /// # Panics
    /// If it is not.
    pub fn take(self) -> Vec<T> {
        assert!(self.made == self.len, "an array is used before it is made");
        self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    /// Adds up what is released, and how far that reaches.
    #[derive(Default)]
    struct Seen(usize, Vec<(usize, usize)>);

    impl Release for Seen {
        fn release<T>(&mut self, spare: &mut [MaybeUninit<T>]) {
            self.0 = self.0.max(size_of_val(spare));
            self.1.push((spare.as_ptr() as usize, size_of_val(spare)));
        }
    }

    #[test]
    fn it_is_made_and_made_anew_where_it_is_a_step_at_a_time() {
        let mut blank = Blank::new(1000, 7u64);
        let (mut steps, at) = (0, blank.items.as_ptr());
        while !blank.make(&mut { 804 }) {
            steps += 1;
            assert_eq!(blank.items.len(), steps * 100, "what is not made is not touched");
        }
        let mut made = blank.take();
        assert_eq!((steps, made.len(), made.as_ptr()), (9, 1000, at));
        made.iter_mut().enumerate().for_each(|(n, item)| *item = n as u64);
        let mut blank = Blank::over(made, 9);
        assert!(!blank.make(&mut { 8 * 400 }));
        assert_eq!((blank.items[399], blank.items[400]), (9, 400));
        assert!(blank.make(&mut { 8 * 600 }));
        let made = blank.take();
        assert!(made.iter().all(|&item| item == 9) && made.as_ptr() == at);
        let mut bytes = 100;
        assert!(Blank::new(3, 1u32).make(&mut bytes) && bytes == 88);
    }

    #[test]
    fn its_memory_goes_in_steps_that_leave_no_page_out_and_can_be_used_again() {
        let mut blank = Blank::over(vec![5u32; 100_000], 6);
        let (start, mut seen) = (blank.items.as_ptr() as usize, Seen::default());
        assert!(!blank.give_back(&mut seen, &mut { 16_384 }));
        // It is wanted again.
        assert!(!blank.make(&mut { 40_000 }));
        assert_eq!(blank.items, [6; 10_000]);
        seen.1.clear();
        while !blank.give_back(&mut seen, &mut { 16_384 }) {}
        assert!(seen.0 <= 16_384 + PAGE_BYTES, "{} bytes at once", seen.0);
        let mut end = start;
        for &(at, bytes) in &seen.1 {
            assert!(at == end || at + PAGE_BYTES == end, "a page between two steps stays");
            end = at + bytes;
        }
        assert_eq!(end, start + 400_000);
        assert!(blank.give_back(&mut seen, &mut { 0 }));
    }
}
