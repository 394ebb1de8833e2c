//! What establishes a session: all that its front end has said and that still holds, so that another process can go on
//! with it, told as numbers and descriptors.
//!
//! Owns the order of both. Never decides what of it is acceptable: it is said to a new session as a front end would,
//! which checks it. Invariant: what was told is read back the same, and whatever else is read is refused or describes
//! some session.

use super::connection::Message;
use super::exchange::Exchange;
use super::limits::{QUEUE_SIZE_MAX, QUEUES_MAX, REGIONS_MAX};
use super::ring::RingAddresses;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use vhost::vhost_user::message::{FrontendReq, VhostUserInflight, VhostUserMemoryRegion, VhostUserVringAddrFlags};
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};

/// A region of memory that a front end shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedRegion {
    pub(super) guest: u64,
    pub(super) user: u64,
    pub(super) len: u64,
    pub(super) offset: u64,
}

/// One queue, as the front end has set it up.
#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) index: u16,
    pub(super) size: u16,
    /// Where it goes on; of a queue that runs, known once it rests.
    pub(super) base: u16,
    pub(super) addresses: Option<RingAddresses>,
    pub(super) started: bool,
    pub(super) enabled: bool,
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
}

/// See the head of the file.
pub struct Established {
    pub(super) features: Option<u64>,
    pub(super) protocol: Option<u64>,
    pub(super) owned: bool,
    pub(super) regions: Vec<(SharedRegion, OwnedFd)>,
    pub(super) inflight: Option<(VhostUserInflight, OwnedFd)>,
    pub(super) queues: Vec<QueueState>,
}

impl fmt::Debug for Established {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Established").field("regions", &self.regions.len()).finish_non_exhaustive()
    }
}

/// What was told describes no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what was told of a vhost-user session is no description of one")]
pub struct Malformed;

/// Numbers and descriptors that are read in their order.
struct Told<'a> {
    numbers: std::slice::Iter<'a, u64>,
    descriptors: std::vec::IntoIter<OwnedFd>,
}

impl Told<'_> {
    fn number(&mut self) -> std::result::Result<u64, Malformed> {
        self.numbers.next().copied().ok_or(Malformed)
    }

    fn small(&mut self) -> std::result::Result<u16, Malformed> {
        u16::try_from(self.number()?).map_err(|_| Malformed)
    }

    fn is(&mut self) -> std::result::Result<bool, Malformed> {
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn perhaps(&mut self) -> std::result::Result<Option<u64>, Malformed> {
        Ok(if self.is()? { Some(self.number()?) } else { None })
    }

    fn descriptor(&mut self) -> std::result::Result<OwnedFd, Malformed> {
        self.descriptors.next().ok_or(Malformed)
    }

    fn perhaps_descriptor(&mut self) -> std::result::Result<Option<OwnedFd>, Malformed> {
        Ok(if self.is()? { Some(self.descriptor()?) } else { None })
    }

    fn region(&mut self) -> std::result::Result<(SharedRegion, OwnedFd), Malformed> {
        let [guest, user, len, offset] = [self.number()?, self.number()?, self.number()?, self.number()?];
        Ok((SharedRegion { guest, user, len, offset }, self.descriptor()?))
    }

    fn queue(&mut self) -> std::result::Result<QueueState, Malformed> {
        let (index, size, base) = (self.small()?, self.small()?, self.small()?);
        let addresses = if self.is()? {
            let (descriptors, available, used) = (self.number()?, self.number()?, self.number()?);
            Some(RingAddresses { descriptors, available, used, log: self.perhaps()? })
        } else {
            None
        };
        let (started, enabled) = (self.is()?, self.is()?);
        let [kick, call, error] = [self.perhaps_descriptor()?, self.perhaps_descriptor()?, self.perhaps_descriptor()?];
        Ok(QueueState { index, size, base, addresses, started, enabled, kick, call, error })
    }
}

fn tell_perhaps(numbers: &mut Vec<u64>, number: Option<u64>) {
    numbers.push(u64::from(number.is_some()));
    numbers.extend(number);
}

impl Established {
    /// As numbers and descriptors.
    pub fn tell(self) -> (Vec<u64>, Vec<OwnedFd>) {
        let (mut numbers, mut descriptors) = (Vec::new(), Vec::new());
        tell_perhaps(&mut numbers, self.features);
        tell_perhaps(&mut numbers, self.protocol);
        numbers.push(u64::from(self.owned));
        numbers.push(self.regions.len() as u64);
        for (r, file) in self.regions {
            numbers.extend([r.guest, r.user, r.len, r.offset]);
            descriptors.push(file);
        }
        numbers.push(u64::from(self.inflight.is_some()));
        if let Some((said, file)) = self.inflight {
            numbers.extend([said.mmap_size, said.mmap_offset]);
            numbers.extend([said.num_queues, said.queue_size].map(u64::from));
            descriptors.push(file);
        }
        numbers.push(self.queues.len() as u64);
        for q in self.queues {
            numbers.extend([q.index, q.size, q.base].map(u64::from));
            numbers.push(u64::from(q.addresses.is_some()));
            if let Some(at) = q.addresses {
                numbers.extend([at.descriptors, at.available, at.used]);
                tell_perhaps(&mut numbers, at.log);
            }
            numbers.extend([q.started, q.enabled].map(u64::from));
            for fd in [q.kick, q.call, q.error] {
                numbers.push(u64::from(fd.is_some()));
                descriptors.extend(fd);
            }
        }
        (numbers, descriptors)
    }

    /// From what was told.
    ///
    /// # Errors
    /// It describes no session, or something is left over.
    pub fn read(numbers: &[u64], descriptors: Vec<OwnedFd>) -> std::result::Result<Established, Malformed> {
        let mut told = Told { numbers: numbers.iter(), descriptors: descriptors.into_iter() };
        let (features, protocol, owned) = (told.perhaps()?, told.perhaps()?, told.is()?);
        let count = told.number()?;
        if count > REGIONS_MAX as u64 {
            return Err(Malformed);
        }
        let regions = (0..count).map(|_| told.region()).collect::<std::result::Result<_, _>>()?;
        let inflight = if told.is()? {
            let (size, offset) = (told.number()?, told.number()?);
            Some((VhostUserInflight::new(size, offset, told.small()?, told.small()?), told.descriptor()?))
        } else {
            None
        };
        let count = told.number()?;
        if count > u64::from(QUEUES_MAX) {
            return Err(Malformed);
        }
        let queues = (0..count).map(|_| told.queue()).collect::<std::result::Result<_, _>>()?;
        if told.numbers.len() > 0 || told.descriptors.len() > 0 {
            return Err(Malformed);
        }
        Ok(Established { features, protocol, owned, regions, inflight, queues })
    }

    /// Says all of it to a session that has just begun, but for which queues run. Returns the queues, for [`start`].
    ///
    /// # Errors
    /// The session refuses something.
    pub(super) fn say(self, to: &mut Exchange) -> Result<Vec<QueueState>> {
        let mut message = |request, number| to.handle(&Message::of(request, number)).1.map_or(Ok(()), Err);
        // The reply to a question is nobody's here; that it was asked is noted.
        message(FrontendReq::GET_FEATURES, None)?;
        if self.owned {
            message(FrontendReq::SET_OWNER, None)?;
        }
        if let Some(features) = self.protocol {
            message(FrontendReq::GET_PROTOCOL_FEATURES, None)?;
            message(FrontendReq::SET_PROTOCOL_FEATURES, Some(features))?;
        }
        if let Some(features) = self.features {
            message(FrontendReq::SET_FEATURES, Some(features))?;
        }
        let mut session = to.session();
        let told = |r: &SharedRegion| VhostUserMemoryRegion::new(r.guest, r.len, r.user, r.offset);
        let (regions, files): (Vec<_>, Vec<_>) =
            self.regions.into_iter().map(|(r, file)| (told(&r), File::from(file))).unzip();
        if !regions.is_empty() {
            session.set_mem_table(&regions, files, None)?;
        }
        if let Some((said, file)) = self.inflight {
            session.set_inflight_fd(&said, File::from(file))?;
        }
        for q in &self.queues {
            let index = u32::from(q.index);
            // One that was never set up has the most that there could be.
            if q.size != QUEUE_SIZE_MAX {
                session.set_vring_num(index, u32::from(q.size))?;
            }
            if let Some(at) = q.addresses {
                let logged = VhostUserVringAddrFlags::VHOST_VRING_F_LOG;
                let flags = if at.log.is_some() { logged } else { VhostUserVringAddrFlags::empty() };
                let log = at.log.unwrap_or(0);
                session.set_vring_addr(index, flags, at.descriptors, at.used, at.available, log)?;
            }
            session.set_vring_enable(index, q.enabled)?;
        }
        Ok(self.queues)
    }
}

/// Says to a session where queues stand, and starts those that ran.
///
/// # Errors
/// The session refuses something.
pub(super) fn start(queues: Vec<QueueState>, at: &Exchange) -> Result<()> {
    let mut session = at.session();
    for q in queues {
        let small = u8::try_from(q.index).map_err(|_| Error::InvalidParam)?;
        session.set_vring_base(u32::from(q.index), u32::from(q.base))?;
        if let Some(error) = q.error {
            session.set_vring_err(small, Some(File::from(error)))?;
        }
        if let Some(call) = q.call {
            session.set_vring_call(small, Some(File::from(call)))?;
        }
        if let (true, Some(kick)) = (q.started, q.kick) {
            session.set_vring_kick(small, Some(File::from(kick)))?;
        }
    }
    Ok(())
}

/// The same queues with descriptors of their own, to start them again where they were.
///
/// # Errors
/// What the kernel says: out of descriptors.
pub(super) fn again(queues: &[QueueState]) -> io::Result<Vec<QueueState>> {
    let copy = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
    let again = |q: &QueueState| {
        let QueueState { index, size, base, addresses, started, enabled, .. } = *q;
        let (kick, call, error) = (copy(&q.kick)?, copy(&q.call)?, copy(&q.error)?);
        Ok(QueueState { index, size, base, addresses, started, enabled, kick, call, error })
    };
    queues.iter().map(again).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn some() -> Established {
        let region = SharedRegion { guest: 0, user: 0x7f00_0000_0000, len: 1 << 20, offset: 4096 };
        let at = RingAddresses { descriptors: 1, available: 2, used: 3, log: Some(4) };
        let queue = |index, addresses: Option<RingAddresses>| QueueState {
            index,
            size: 256,
            base: 65535,
            addresses,
            started: addresses.is_some(),
            enabled: true,
            kick: addresses.map(|_| descriptor()),
            call: None,
            error: addresses.map(|_| descriptor()),
        };
        Established {
            features: Some(1 << 32),
            protocol: None,
            owned: true,
            regions: vec![(region, descriptor()), (SharedRegion { guest: 1 << 32, ..region }, descriptor())],
            inflight: Some((VhostUserInflight::new(8192, 64, 2, 256), descriptor())),
            queues: vec![queue(0, Some(at)), queue(1, None)],
        }
    }

    fn descriptors(n: usize) -> Vec<OwnedFd> {
        (0..n).map(|_| descriptor()).collect()
    }

    #[test]
    fn what_was_told_is_read_back() {
        let (numbers, fds) = some().tell();
        let count = fds.len();
        assert_eq!(count, 2 + 1 + 2);
        let (again, fds) = Established::read(&numbers, fds).unwrap().tell();
        assert_eq!((again, fds.len()), (numbers, count));
    }

    /// Whatever of it is another number, one less or one more: no panic, and no more memory than it has numbers.
    #[test]
    fn what_is_damaged_is_refused_or_describes_some_session() {
        let (numbers, fds) = some().tell();
        for cut in 0..numbers.len() {
            assert!(Established::read(&numbers[..cut], descriptors(fds.len())).is_err(), "cut at {cut}");
        }
        for n in 0..fds.len() {
            assert!(Established::read(&numbers, descriptors(n)).is_err(), "{n} descriptors");
        }
        assert!(Established::read(&numbers, descriptors(fds.len() + 1)).is_err());
        for at in 0..numbers.len() {
            for to in [0, 1, 2, u64::from(u16::MAX), u64::MAX] {
                let mut other = numbers.clone();
                other[at] = to;
                if let Ok(read) = Established::read(&other, descriptors(fds.len())) {
                    assert_eq!(read.tell().0, other, "number {at} as {to} is read as something else");
                }
            }
        }
    }
}
