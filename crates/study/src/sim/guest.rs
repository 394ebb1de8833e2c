//! A guest's own page cache, as Linux keeps one: which accesses reach the host, and through which pages of memory.
//!
//! Owns two lists (inactive, active), refaults and free pages, after mm/workingset.c and mm/vmscan.c of Linux 6.1 for
//! a small machine without mapped files. Never sees the host. Invariant: a page of memory is free or holds one block.

use std::collections::HashMap;
use undercroft_trace::transfers::Transfer;

/// The memory of a guest as its host sees it: pages and their contents.
pub trait GuestMemory {
    /// The content of `page`: block and version, or `None` if it was zeroed or holds no block.
    fn content(&self, page: u32) -> Option<(u64, u64)>;
    /// The version of `block` on the disk.
    fn version(&self, block: u64) -> u64;
    /// How many pages there are.
    fn pages(&self) -> u32;
}

/// How the guest is set up.
#[derive(Clone, Copy, Debug)]
pub struct GuestOptions {
    /// Pages of memory for the page cache.
    pub pages: u32,
    /// Pages that background reclaim keeps free.
    pub free_pages: u32,
    /// Whether a page is zeroed when it is allocated (`init_on_alloc=1`).
    pub zeroing: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    block: u64,
    prev: u32,
    next: u32,
    active: bool,
    referenced: bool,
    dirty: bool,
    used: bool,
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

/// A guest's page cache.
#[derive(Debug)]
pub struct SimulatedGuest {
    options: GuestOptions,
    pages: Vec<Held>,
    lists: [List; 2],
    /// Oldest first: reclaim frees at the end, allocation takes from the front.
    free: std::collections::VecDeque<u32>,
    map: HashMap<u64, u32>,
    /// What a page holds, whatever it is used for: `None` if zeroed.
    content: Vec<Option<(u64, u64)>>,
    versions: HashMap<u64, u64>,
    /// Dirty pages, those longest dirty first; some may be clean again.
    dirty: std::collections::VecDeque<u32>,
    /// When evicted blocks left, in evictions.
    shadows: HashMap<u64, u64>,
    evictions: u64,
}

impl GuestMemory for SimulatedGuest {
    fn content(&self, page: u32) -> Option<(u64, u64)> {
        self.content[page as usize]
    }

    fn version(&self, block: u64) -> u64 {
        self.versions.get(&block).copied().unwrap_or(0)
    }

    fn pages(&self) -> u32 {
        self.options.pages
    }
}

impl SimulatedGuest {
    /// An empty guest.
    pub fn new(options: GuestOptions) -> Self {
        let list = List { head: NIL, tail: NIL, len: 0 };
        Self {
            options,
            pages: vec![Held::default(); options.pages as usize],
            lists: [list; 2],
            free: (0..options.pages).collect(),
            map: HashMap::new(),
            content: vec![None; options.pages as usize],
            versions: HashMap::new(),
            dirty: std::collections::VecDeque::new(),
            shadows: HashMap::new(),
            evictions: 0,
        }
    }

    /// The guest reads or writes `block`; `on` is called for each transfer from or to the disk, before the page's
    /// content changes.
    pub fn access(&mut self, block: u64, write: bool, on: &mut impl FnMut(&SimulatedGuest, Transfer)) {
        if let Some(&page) = self.map.get(&block) {
            self.mark_accessed(page);
            if write {
                self.scribble(page, on);
            }
            return;
        }
        let page = self.allocate(on);
        if self.options.zeroing {
            self.content[page as usize] = None;
        }
        let refault = self.shadows.remove(&block).is_some_and(|at| self.evictions - at <= u64::from(self.lists[1].len));
        let p = &mut self.pages[page as usize];
        *p = Held { block, active: refault, used: true, dirty: false, prev: NIL, next: NIL, referenced: false };
        self.map.insert(block, page);
        self.push(page);
        if write {
            self.scribble(page, on);
        } else {
            on(self, Transfer { block, page, write: false });
            self.content[page as usize] = Some((block, self.version(block)));
        }
    }

    /// The guest begins afresh: it holds nothing any more, and what it had not written is lost. Its pages hold what
    /// they held until they are used.
    pub fn reboot(&mut self) {
        let list = List { head: NIL, tail: NIL, len: 0 };
        self.pages.fill(Held::default());
        self.lists = [list; 2];
        self.free = (0..self.options.pages).collect();
        self.map.clear();
        self.dirty.clear();
        self.shadows.clear();
    }

    /// So many pages are added to the guest's memory, behind those that it has.
    pub fn grow(&mut self, pages: u32) {
        let first = self.options.pages;
        self.options.pages += pages;
        self.pages.resize(self.options.pages as usize, Held::default());
        self.content.resize(self.options.pages as usize, None);
        self.free.extend(first..self.options.pages);
    }

    /// The guest drops what it holds of `block`, as a program asks with `POSIX_FADV_DONTNEED`; a dirty page stays.
    pub fn release(&mut self, block: u64) {
        if let Some(&page) = self.map.get(&block)
            && !self.pages[page as usize].dirty
        {
            self.remove(page);
            self.map.remove(&block);
            self.pages[page as usize].used = false;
            self.free.push_back(page);
        }
    }

    /// A balloon takes so many pages, which the guest frees for it as for any program, and gives them back to the host
    /// at once: what they held is gone.
    pub fn inflate(&mut self, pages: u32, on: &mut impl FnMut(&SimulatedGuest, Transfer)) {
        for _ in 0..pages {
            let page = self.allocate(on);
            self.content[page as usize] = None;
        }
    }

    /// The guest drops everything that it need not write first, as `drop_caches` asks.
    pub fn drop_caches(&mut self) {
        let mut blocks: Vec<u64> = self.map.keys().copied().collect();
        blocks.sort_unstable();
        blocks.into_iter().for_each(|block| self.release(block));
    }

    /// New content that the disk does not have. A tenth of the pages may be dirty; the longest dirty are written.
    fn scribble(&mut self, page: u32, on: &mut impl FnMut(&SimulatedGuest, Transfer)) {
        let block = self.pages[page as usize].block;
        self.content[page as usize] = Some((block, u64::MAX));
        if !std::mem::replace(&mut self.pages[page as usize].dirty, true) {
            self.dirty.push_back(page);
        }
        while self.dirty.len() as u32 > self.options.pages / 10 {
            let page = self.dirty.pop_front().expect("not empty");
            self.write_back(page, on);
        }
    }

    fn write_back(&mut self, page: u32, on: &mut impl FnMut(&SimulatedGuest, Transfer)) {
        let p = self.pages[page as usize];
        if p.used && p.dirty {
            on(self, Transfer { block: p.block, page, write: true });
            let version = self.versions.entry(p.block).or_insert(0);
            *version += 1;
            self.content[page as usize] = Some((p.block, *version));
            self.pages[page as usize].dirty = false;
        }
    }

    fn mark_accessed(&mut self, page: u32) {
        let p = self.pages[page as usize];
        if !p.referenced {
            self.pages[page as usize].referenced = true;
        } else if !p.active {
            self.remove(page);
            self.pages[page as usize].active = true;
            self.pages[page as usize].referenced = false;
            self.push(page);
        }
    }

    fn allocate(&mut self, on: &mut impl FnMut(&SimulatedGuest, Transfer)) -> u32 {
        if (self.free.len() as u32) < self.options.free_pages / 2 {
            while (self.free.len() as u32) < self.options.free_pages {
                self.reclaim(on);
            }
        }
        self.free.pop_front().expect("reclaim frees pages")
    }

    fn reclaim(&mut self, on: &mut impl FnMut(&SimulatedGuest, Transfer)) {
        while self.lists[1].len > self.lists[0].len {
            let page = self.lists[1].tail;
            self.remove(page);
            self.pages[page as usize].active = false;
            self.pages[page as usize].referenced = false;
            self.push(page);
        }
        let page = self.lists[0].tail;
        let p = self.pages[page as usize];
        // written, and freed at once after that
        self.write_back(page, on);
        self.remove(page);
        self.map.remove(&p.block);
        self.evictions += 1;
        self.shadows.insert(p.block, self.evictions);
        self.pages[page as usize].used = false;
        self.free.push_back(page);
    }

    fn push(&mut self, page: u32) {
        let i = usize::from(self.pages[page as usize].active);
        let head = self.lists[i].head;
        self.pages[page as usize].prev = NIL;
        self.pages[page as usize].next = head;
        if head == NIL {
            self.lists[i].tail = page
        } else {
            self.pages[head as usize].prev = page
        }
        self.lists[i].head = page;
        self.lists[i].len += 1;
    }

    fn remove(&mut self, page: u32) {
        let p = self.pages[page as usize];
        let i = usize::from(p.active);
        if p.prev == NIL {
            self.lists[i].head = p.next
        } else {
            self.pages[p.prev as usize].next = p.next
        }
        if p.next == NIL {
            self.lists[i].tail = p.prev
        } else {
            self.pages[p.next as usize].prev = p.prev
        }
        self.lists[i].len -= 1;
    }
}
