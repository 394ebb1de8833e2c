//! Slots by how often they were asked for, and by arrival among equals: what LFU, and policies with LFU in them, keep.
//!
//! Owns classes of equal counts in a list by rising count, each with its own queue, so that a hit takes constant time
//! (Shah, Mitra and Matani, "An O(1) algorithm for implementing the LFU cache eviction scheme", 2010). Never forgets a
//! count by itself.
//! Invariant: counts rise strictly along the list of classes; no class is empty.

use super::per_slot::PerSlot;
use crate::policy::{Search, oldest};
use crate::structures::list::{Links, List, NIL};
use crate::structures::slots::Slot;

#[derive(Debug)]
struct Class {
    count: u32,
    queue: List,
    fewer: u32,
    more: u32,
}

#[derive(Debug)]
pub(super) struct Frequencies {
    classes: Vec<Class>,
    /// Classes that are not in use.
    free: Vec<u32>,
    /// The class with the smallest count, or `NIL`.
    first: u32,
    class_of: PerSlot<u32>,
    len: u32,
}

impl Frequencies {
    pub fn new(slots: u32) -> Self {
        Self { classes: vec![], free: vec![], first: NIL, class_of: PerSlot::new(slots), len: 0 }
    }

    /// A class with `count` between `fewer` and `more`.
    fn class(&mut self, count: u32, fewer: u32, more: u32) -> u32 {
        let class = Class { count, queue: List::new(), fewer, more };
        let at = match self.free.pop() {
            Some(at) => {
                self.classes[at as usize] = class;
                at
            }
            None => {
                self.classes.push(class);
                self.classes.len() as u32 - 1
            }
        };
        self.link(fewer, at);
        if more != NIL {
            self.classes[more as usize].fewer = at;
        }
        at
    }

    fn link(&mut self, fewer: u32, to: u32) {
        if fewer == NIL { self.first = to } else { self.classes[fewer as usize].more = to }
    }

    /// A new slot that was asked for `count` times.
    pub fn add(&mut self, links: &mut Links, slot: Slot, count: u32) {
        let (mut fewer, mut at) = (NIL, self.first);
        while at != NIL && self.classes[at as usize].count < count {
            (fewer, at) = (at, self.classes[at as usize].more);
        }
        if at == NIL || self.classes[at as usize].count != count {
            at = self.class(count, fewer, at);
        }
        self.classes[at as usize].queue.push(links, slot);
        self.class_of.set(slot, at);
        self.len += 1;
    }

    /// A slot was asked for once more.
    #[inline]
    pub fn touch(&mut self, links: &mut Links, slot: Slot) {
        let at = self.class_of.get(slot);
        let Class { count, ref queue, more, .. } = self.classes[at as usize];
        if count == u32::MAX {
            return;
        }
        let next = match self.classes.get(more as usize) {
            Some(class) if class.count == count + 1 => more,
            // alone in its class: the class changes
            _ if queue.len() == 1 => {
                self.classes[at as usize].count += 1;
                return;
            }
            _ => self.class(count + 1, at, more),
        };
        self.classes[at as usize].queue.remove(links, slot);
        self.classes[next as usize].queue.push(links, slot);
        self.class_of.set(slot, next);
        self.drop_if_empty(at);
    }

    fn drop_if_empty(&mut self, at: u32) {
        let Class { ref queue, fewer, more, .. } = self.classes[at as usize];
        if queue.len() > 0 {
            return;
        }
        self.link(fewer, more);
        if more != NIL {
            self.classes[more as usize].fewer = fewer;
        }
        self.free.push(at);
    }

    pub fn remove(&mut self, links: &mut Links, slot: Slot) {
        let at = self.class_of.get(slot);
        self.classes[at as usize].queue.remove(links, slot);
        self.len -= 1;
        self.drop_if_empty(at);
    }

    pub fn moved(&mut self, links: &mut Links, from: Slot, to: Slot) {
        let at = self.class_of.get(from);
        self.classes[at as usize].queue.replace(links, from, to);
        self.class_of.set(to, at);
    }

    fn classes(&self) -> impl Iterator<Item = &Class> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let class = self.classes.get(at as usize)?;
            at = class.more;
            Some(class)
        })
    }

    /// Of those with the smallest count that may go, the one that has had it longest; not taken out.
    pub fn least(&self, links: &Links, may_evict: &impl Fn(Slot) -> bool, search: &mut Search) -> Option<Slot> {
        for class in self.classes() {
            if let Some(slot) = oldest(&class.queue, links, may_evict, search) {
                return Some(slot);
            }
            if search.is_over() {
                return None;
            }
        }
        None
    }

    /// The slots by rising count.
    pub fn iter<'a>(&'a self, links: &'a Links) -> impl Iterator<Item = Slot> + 'a {
        self.classes().flat_map(move |class| class.queue.iter(links))
    }

    pub fn memory_bytes(&self) -> usize {
        self.classes.capacity() * size_of::<Class>()
            + self.free.capacity() * size_of::<u32>()
            + self.class_of.memory_bytes()
    }

    pub fn check(&self, links: &Links, occupied: u32) {
        assert_eq!(self.len, occupied, "slots in the classes");
        let (mut before, mut seen) = (None, 0);
        for class in self.classes() {
            class.queue.check(links);
            assert!(class.queue.len() > 0, "an empty class");
            assert!(before.is_none_or(|b| b < class.count), "classes out of order");
            before = Some(class.count);
            seen += class.queue.len();
            let of_class = |s: Slot| std::ptr::eq(&self.classes[self.class_of.get(s) as usize], class);
            assert!(class.queue.iter(links).all(of_class), "a slot of another class");
        }
        assert_eq!(seen, occupied, "slots in the classes' queues");
    }
}
