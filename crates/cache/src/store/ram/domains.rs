//! Which disks hold frames in common, and which disk is charged for a frame: disks enter and leave sharing domains.
//!
//! Owns the members of domains, what disks are promised, and the list of disks whose charge may have gone up. Never
//! evicts: the core does, for the disks that it takes off the list. Invariant: a disk leaves a domain only when it
//! holds no frame of it that others hold too, and a domain ends with its last member.

use super::{ALONE, Account, Ring, SharingDomain, Store};
use crate::types::{DiskId, GroupId, LayerId, Shared, SharingDomainReport};

impl Store {
    /// A disk comes, and shares with `group`.
    pub(crate) fn enter(&mut self, disk: DiskId, group: Option<GroupId>, frames: u32) {
        let i = disk.0 as usize;
        if self.accounts.len() <= i {
            self.accounts.resize_with(i + 1, Account::default);
        }
        self.accounts[i] = Account { listed: self.accounts[i].listed, ..Account::default() };
        if let Some(group) = group.filter(|_| self.on) {
            self.accounts[i].domains[0] = self.join(disk, Shared::Group(group));
        }
        self.set_frames(disk, frames, frames);
    }

    /// The disk stands on a base from now on; it has nothing of it yet.
    pub(crate) fn stand_on(&mut self, disk: DiskId, layer: LayerId) -> SharingDomain {
        let i = disk.0 as usize;
        if self.accounts[i].domains[1] != ALONE {
            self.quit(disk, 1);
        }
        let domain = self.join(disk, Shared::Layer(layer));
        self.accounts[i].domains[1] = domain;
        domain
    }

    /// The disk leaves its base, of which it holds nothing any more.
    pub(crate) fn leave_base(&mut self, disk: DiskId) {
        self.quit(disk, 1);
    }

    /// The disk has given up everything and goes. What it paid for and others hold is theirs to pay or to give up,
    /// before [`Store::fit`]: see [`Store::overdrawn`].
    pub(crate) fn leave(&mut self, disk: DiskId) {
        self.set_frames(disk, 0, 0);
        self.set_pool_part(disk, 0);
        self.quit(disk, 0);
        self.quit(disk, 1);
    }

    fn join(&mut self, disk: DiskId, key: Shared) -> SharingDomain {
        let same = self.rings.iter().position(|r| r.key == Some(key));
        let free = || self.rings.iter().skip(1).position(|r| r.key.is_none()).map(|n| n + 1);
        let n = same.or_else(free).unwrap_or(self.rings.len());
        if n == self.rings.len() {
            self.rings.push(Ring::default());
        }
        let ring = &mut self.rings[n];
        ring.key = Some(key);
        ring.members.push(disk);
        n as SharingDomain
    }

    fn quit(&mut self, disk: DiskId, which: usize) {
        let account = &mut self.accounts[disk.0 as usize];
        let domain = std::mem::take(&mut account.domains[which]);
        if domain == ALONE {
            return;
        }
        assert!(account.shared[which] == 0, "a disk leaves a domain while it holds frames of it");
        let ring = &mut self.rings[domain as usize];
        ring.members.retain(|&m| m != disk);
        if ring.members.is_empty() {
            assert!(ring.frames == 0 && ring.slots == 0, "the last disk of a domain leaves frames behind");
            *ring = Ring::default();
        }
    }

    /// The domain of the disk's group; [`ALONE`] if it shares nothing.
    pub(crate) fn group_of(&self, disk: DiskId) -> SharingDomain {
        self.accounts.get(disk.0 as usize).map_or(ALONE, |a| a.domains[0])
    }

    /// How many frames the disk is promised, and how many it may keep now.
    pub(crate) fn set_frames(&mut self, disk: DiskId, frames: u32, limit: u32) {
        let account = &mut self.accounts[disk.0 as usize];
        self.seats = self.seats - account.frames + frames;
        account.frames = frames;
        account.limit = limit;
        if self.seats > self.room {
            self.fit();
        }
    }

    /// How many frames the disks of a pool may keep now in all: each is looked at when it alone has come to be charged
    /// so much more that the limit of all may be passed.
    pub(crate) fn set_limit_together(&mut self, disks: impl Iterator<Item = DiskId> + Clone, limit: u32) {
        let charged: u64 = disks.clone().map(|disk| self.charge(disk)).sum();
        let room = u64::from(limit).saturating_sub(charged);
        for disk in disks {
            let limit = (self.charge(disk) + room).min(u64::from(u32::MAX)) as u32;
            self.accounts[disk.0 as usize].limit = limit;
        }
    }

    /// How many frames the disk brings into the pool for I/O.
    pub(crate) fn set_pool_part(&mut self, disk: DiskId, frames: u32) {
        let account = &mut self.accounts[disk.0 as usize];
        if account.pool_part != frames {
            self.pool.bring(account.pool_part as usize, frames as usize);
            account.pool_part = frames;
        }
    }

    /// Frames in slots for which nobody would pay if the disks were promised `less` frames less in all.
    pub(crate) fn overdrawn(&self, less: u32) -> u32 {
        (self.seated + less).saturating_sub(self.seats)
    }

    /// What the disk pays for, in frames, rounded up.
    pub(crate) fn charge(&self, disk: DiskId) -> u64 {
        let Some(a) = self.accounts.get(disk.0 as usize) else { return 0 };
        let part = |k: usize| {
            let ring = &self.rings[a.domains[k] as usize];
            (u64::from(a.shared[k]) * u64::from(ring.frames)).div_ceil(u64::from(ring.slots).max(1))
        };
        u64::from(a.alone) + part(0) + part(1)
    }

    /// The disk's account.
    pub(crate) fn account(&self, disk: DiskId) -> Account {
        self.accounts.get(disk.0 as usize).copied().unwrap_or_default()
    }

    /// Puts the disk on the list of those whose charge may have passed their share.
    pub(crate) fn look_at(&mut self, disk: DiskId) {
        let a = &mut self.accounts[disk.0 as usize];
        if !a.listed {
            a.listed = true;
            self.over.push_back(disk);
        }
    }

    pub(super) fn look_at_domain(&mut self, domain: SharingDomain) {
        self.rings[domain as usize].drift = 0;
        for i in 0..self.rings[domain as usize].members.len() {
            self.look_at(self.rings[domain as usize].members[i]);
        }
    }

    /// Puts every disk on the list: one found no frame left.
    pub(crate) fn look_at_all(&mut self) {
        for domain in 1..self.rings.len() {
            self.look_at_domain(domain as SharingDomain);
        }
    }

    /// How many disks are on the list.
    #[inline]
    pub(crate) fn to_look_at(&self) -> usize {
        self.over.len()
    }

    /// Takes a disk off the list.
    pub(crate) fn next_to_look_at(&mut self) -> Option<DiskId> {
        let disk = self.over.pop_front()?;
        self.accounts[disk.0 as usize].listed = false;
        Some(disk)
    }

    /// The domains, and what is shared in them.
    pub(crate) fn report(&self) -> Vec<SharingDomainReport> {
        self.rings
            .iter()
            .filter_map(|r| {
                let (shared_frames, shared_blocks) = (u64::from(r.frames), u64::from(r.slots));
                Some(SharingDomainReport { what: r.key?, disks: r.members.clone(), shared_frames, shared_blocks })
            })
            .collect()
    }
}
