//! A table of things under way, addressed by a small number that is reused after removal.
//!
//! Owns its items. Never grows past its limit and never gives memory back. Invariant: a number names an item from
//! `insert` until `remove`.

use std::mem::size_of;
use std::ops::{Index, IndexMut};

/// A bounded table; grows by doubling up to its limit, so that a quiet disk costs little.
#[derive(Debug)]
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
    max: usize,
}

impl<T> Slab<T> {
    pub(super) fn new(max: usize) -> Self {
        Self { items: Vec::new(), free: Vec::new(), max }
    }

    /// Lets the table hold `max` items, if that is more.
    pub(super) fn allow(&mut self, max: usize) {
        self.max = self.max.max(max);
    }

    /// Bytes that a table of `max` items holds at most.
    pub(super) const fn bytes_max(max: usize) -> usize {
        max * (size_of::<Option<T>>() + size_of::<u32>())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.items.capacity() * size_of::<Option<T>>() + self.free.capacity() * size_of::<u32>()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// The number under which `item` now stands.
    ///
    /// # Panics
    /// If the table is full: callers ask `is_full` first.
    pub(super) fn insert(&mut self, item: T) -> u32 {
        assert!(!self.is_full(), "a table of things under way overflowed");
        if let Some(i) = self.free.pop() {
            self.items[i as usize] = Some(item);
            return i;
        }
        if self.items.len() == self.items.capacity() {
            let more = self.items.len().max(16).min(self.max - self.items.len());
            self.items.reserve_exact(more);
            // Every number may come back: room for all of them now keeps `remove` free of allocation.
            self.free.reserve_exact(self.items.capacity());
        }
        self.items.push(Some(item));
        (self.items.len() - 1) as u32
    }

    pub(super) fn remove(&mut self, i: u32) -> T {
        let item = self.items[i as usize].take();
        self.free.push(i);
        item.expect("a thing under way was removed twice")
    }

    /// Takes everything out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.free.clear();
        self.items.drain(..).flatten()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().enumerate().filter_map(|(i, item)| Some((i as u32, item.as_ref()?)))
    }

    pub(super) fn get(&self, i: u32) -> Option<&T> {
        self.items.get(i as usize)?.as_ref()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.items.capacity()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, i: u32) -> &T {
        self.items[i as usize].as_ref().expect("no such thing under way")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut T {
        self.items[i as usize].as_mut().expect("no such thing under way")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_and_the_limit_holds() {
        let mut s = Slab::new(20);
        let ids: Vec<u32> = (0..20).map(|i| s.insert(i)).collect();
        assert!(s.is_full());
        assert_eq!(s.remove(ids[7]), 7);
        assert_eq!(s.insert(70), ids[7]);
        assert_eq!((s[ids[7]], s.len(), s.capacity()), (70, 20, 20));
        assert!(s.memory_bytes() <= Slab::<i32>::bytes_max(20));
    }

    #[test]
    #[should_panic(expected = "removed twice")]
    fn a_thing_is_removed_once() {
        let mut s = Slab::new(2);
        let i = s.insert(1);
        s.remove(i);
        s.remove(i);
    }
}
