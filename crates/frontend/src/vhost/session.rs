//! One session of a front end: the vhost-user messages, from connection to disconnection.
//!
//! Owns what was negotiated and the memory table. Never touches a ring: every change goes to the port, on the worker
//! thread, and has happened when the message is answered. Invariant: nothing here waits for requests under way: queues
//! that a message stops have come to rest before it is handled, or it is refused.

use super::VhostOptions;
use super::config::{LOG_ALL, Profile};
use super::dirty_log::DirtyLog;
use super::established::{Established, SharedRegion};
use super::inflight::InflightArea;
use super::limits::REGIONS_MAX;
use super::mappings::Mappings;
use super::memory::{GuestMap, MemoryRegion};
use super::port::{QueueRefusal, RestNotice, VhostPort};
use super::ring::RingAddresses;
use super::shared::{self, Trust};
use super::tasks::{NOT_AN_EVENTFD, is_eventfd};
use crate::PortHost;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, sync_channel};
use undercroft_host::Guarded;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

/// What one front end has said since it connected.
pub struct Session {
    host: Arc<dyn PortHost>,
    port: u32,
    disk: Profile,
    options: VhostOptions,
    owned: bool,
    map: Arc<GuestMap>,
    mappings: Mappings,
    /// Whether the log says that its memory should be preallocated.
    advised: bool,
    /// Whether the front end has handed over a record of requests under way.
    logged: bool,
    /// The log of dirty memory that it has handed over last, and whether it is in use.
    log: Option<DirtyLog>,
    logging: bool,
    /// What was accepted of the features of the device, and of those of the protocol.
    features: Option<u64>,
    protocol: Option<u64>,
    /// The record of requests under way that it has handed over last.
    inflight: Option<InflightArea>,
    /// Whether messages are answered that ask for it.
    acknowledges: bool,
    /// With the last message the guest has stopped while it migrates.
    leaves: bool,
}

impl Session {
    /// A session of a front end that has just connected.
    pub fn new(
        host: Arc<dyn PortHost>,
        port: u32,
        disk: Profile,
        options: &VhostOptions,
        mappings: &Mappings,
    ) -> Session {
        let (options, mappings) = (options.clone(), mappings.clone());
        let map = Arc::default();
        Session {
            host,
            port,
            disk,
            options,
            owned: false,
            map,
            mappings,
            advised: false,
            logged: false,
            log: None,
            logging: false,
            features: None,
            protocol: None,
            inflight: None,
            acknowledges: false,
            leaves: false,
        }
    }

    /// Tells the port of the connection.
    pub(super) fn welcome(&self, connection: UnixStream) -> Result<()> {
        self.on_port(move |port| port.welcome(connection))
    }

    /// What another process has to be told to go on with the session, but for where the queues stand.
    ///
    /// # Errors
    /// Why it cannot go elsewhere now.
    pub(super) fn describe(&self) -> io::Result<Established> {
        if self.log.is_some() || self.logging {
            return Err(io::Error::other("the guest migrates"));
        }
        let gone = || io::Error::other("the disk is being detached");
        let queues = self.on_port(|port| port.describe()).map_err(|_| gone())??;
        let mut regions = Vec::new();
        for r in self.map.regions() {
            let place = r.mapping.file_offset().ok_or_else(|| io::Error::other("a region of memory has no file"))?;
            let region = SharedRegion { guest: r.guest, user: r.user, len: r.len, offset: place.start() };
            regions.push((region, place.file().try_clone()?.into()));
        }
        let inflight = self.inflight.as_ref().map(InflightArea::said).transpose()?;
        let (features, protocol, owned) = (self.features, self.protocol, self.owned);
        Ok(Established { features, protocol, owned, regions, inflight, queues })
    }

    /// Runs `f` with the port on the worker thread.
    fn on_port<R: Send + 'static>(&self, f: impl FnOnce(&mut VhostPort) -> R + Send + 'static) -> Result<R> {
        on_port(&*self.host, self.port, f).ok_or_else(|| refused("the disk is being detached"))
    }

    /// Runs `f` like `on_port`, where the port may refuse.
    fn ask(
        &self,
        f: impl FnOnce(&mut VhostPort) -> std::result::Result<(), QueueRefusal> + Send + 'static,
    ) -> Result<()> {
        self.on_port(f)?.map_err(refused)
    }

    /// Whether the guest has stopped while it migrates, by the message that was handled last. True once.
    pub(super) fn take_leaves(&mut self) -> bool {
        std::mem::take(&mut self.leaves)
    }

    /// Begins to stop a queue; `done` is told when its last request is answered.
    pub(super) fn begin_stop(&self, index: u32, done: RestNotice) -> Result<()> {
        self.ask(move |port| port.stop(index, done))
    }

    /// Stops a queue that has come to rest. Returns its position.
    fn stop(&self, index: u32) -> Result<u16> {
        let (done, rest) = sync_channel(1);
        self.begin_stop(index, done.into())?;
        rest.try_recv().map_err(|e| match e {
            TryRecvError::Disconnected => refused("the disk was detached while a queue was stopping"),
            TryRecvError::Empty => refused("requests of a queue that is to stop are still under way"),
        })
    }

    /// Refuses `map` while it is migrated with a log that does not reach to its end.
    fn check_log(&self, logging: bool, map: &GuestMap) -> Result<()> {
        if logging && self.log.as_ref().is_some_and(|log| !log.covers(map)) {
            return Err(refused("the log of dirty memory is too small for the guest's memory"));
        }
        Ok(())
    }

    /// Sets where the front end is told of marks in the log. Whether it wants an answer is for the caller to know.
    pub(super) fn set_log_fd(&mut self, call: File) -> Result<()> {
        let call = eventfd(call)?;
        self.on_port(move |port| port.set_log_call(Some(call)))
    }

    /// Whether messages that ask for an answer have one.
    pub(super) fn acknowledges(&self) -> bool {
        self.acknowledges
    }

    fn set_memory(&mut self, map: GuestMap) -> Result<()> {
        self.check_log(self.logging, &map)?;
        let map = Arc::new(map);
        let is_charged = self.options.room.is_limited() && map.look_for_holes();
        if is_charged && !std::mem::replace(&mut self.advised, true) {
            tracing::warn!(
                disk = self.disk.name,
                "the guest's memory is not preallocated: what the daemon is the first to touch of it is charged to the \
                 daemon's control group, and when that is full this guest's requests wait. Add prealloc=on to its \
                 memory"
            );
        }
        self.map = Arc::clone(&map);
        self.on_port(move |port| port.set_memory(map))
    }
}

/// Runs `f` with the port on the worker thread and returns its result; `None` if the port is gone.
pub fn on_port<R: Send + 'static>(
    host: &dyn PortHost,
    port: u32,
    f: impl FnOnce(&mut VhostPort) -> R + Send + 'static,
) -> Option<R> {
    let (send, receive) = sync_channel(1);
    let ran = host.with(
        port,
        Box::new(move |port| {
            if let Some(port) = port.as_any().downcast_mut::<VhostPort>() {
                let _ = send.try_send(f(port));
            }
        }),
    );
    ran.then(|| receive.try_recv().ok()).flatten()
}

/// An error that ends the session, with a reason for the log.
fn refused(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(why))
}

/// Maps a region that a front end shares.
fn mapped(region: &VhostUserMemoryRegion, file: File, trust: Trust, mappings: &Mappings) -> Result<MemoryRegion> {
    let (guest, user, len, offset) = (region.guest_phys_addr, region.user_addr, region.memory_size, region.mmap_offset);
    shared::check(&file, trust).map_err(Error::ReqHandlerError)?;
    // Access past the end of a file breaks the mapping, so what can be known beforehand is said now.
    let size = file.metadata().map_err(Error::ReqHandlerError)?;
    let end = offset.checked_add(len);
    if usize::try_from(len).is_err() || (size.is_file() && end.is_none_or(|end| end > size.len())) {
        return Err(refused(format!("the file of the memory region at guest address {guest:#x} is too short for it")));
    }
    let place = mappings.take().map_err(refused)?;
    let mapping = Guarded::new(region.mmap_region(file)?).map_err(Error::ReqHandlerError)?.holding(place);
    Ok(MemoryRegion { guest, user, len, mapping: Arc::new(mapping) })
}

/// Checks that a descriptor from the front end is an eventfd, and asks that writing to it does not block. The front end
/// can undo the latter: see [`undercroft_host::Doorbell`].
fn eventfd(file: File) -> Result<File> {
    // Anything else could make writing to it, or waiting for it, a wait for whoever serves it.
    if !is_eventfd(&file).map_err(|e| Error::ReqHandlerError(e.into()))? {
        return Err(refused(NOT_AN_EVENTFD));
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| Error::ReqHandlerError(e.into()))?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)
        .map_err(|e| Error::ReqHandlerError(e.into()))?;
    Ok(file)
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.owned, true) {
            return Err(Error::InvalidOperation("the session is owned already"));
        }
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.owned = false;
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        for index in 0..u32::from(self.options.queues) {
            self.stop(index)?;
        }
        (self.logged, self.log, self.logging) = (false, None, false);
        self.inflight = None;
        self.on_port(VhostPort::reset)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.disk.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.disk.features();
        if unknown != 0 {
            return Err(refused(format!("the front end accepted features that were not offered: {unknown:#x}")));
        }
        let logging = features & LOG_ALL != 0;
        self.check_log(logging, &self.map)?;
        self.logging = logging;
        self.features = Some(features);
        self.on_port(move |port| port.set_features(features))
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut map = GuestMap::default();
        for (region, file) in regions.iter().zip(files) {
            map = map.with(mapped(region, file, self.options.trust, &self.mappings)?).map_err(refused)?;
        }
        self.set_memory(map)?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let map = self.map.with(mapped(region, file, self.options.trust, &self.mappings)?).map_err(refused)?;
        self.set_memory(map)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let map = self.map.without(region.guest_phys_addr, region.user_addr, region.memory_size).map_err(refused)?;
        self.set_memory(map)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        if num > u32::from(self.options.queue_size) {
            let max = self.options.queue_size;
            return Err(refused(format!("a queue of {num} entries was asked for, at most {max} are offered")));
        }
        self.ask(move |port| port.set_size(index, num))
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        if self.map.is_empty() {
            return Err(refused("a ring was placed before the memory it lies in was shared"));
        }
        let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        self.ask(move |port| port.set_addresses(index, RingAddresses { descriptors, available, used, log }))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ask(move |port| port.set_base(index, base))
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.stop(index)?;
        // Without a log nobody migrates, whatever features were accepted.
        self.leaves = self.logging && self.log.is_some() && self.on_port(|port| port.has_stopped())?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        // Without a descriptor the ring would have to be polled for ever.
        let kick = eventfd(kick.ok_or_else(|| refused("a queue without a kick descriptor is not served"))?)?;
        let logged = self.logged;
        self.host.guest_starts();
        self.ask(move |port| port.start(u32::from(index), kick, logged))
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        let call = call.map(eventfd).transpose()?;
        self.ask(move |port| port.set_call(u32::from(index), call))
    }

    fn set_vring_err(&mut self, index: u8, error: Option<File>) -> Result<()> {
        let error = error.map(eventfd).transpose()?;
        self.ask(move |port| port.set_error(u32::from(index), error))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(Profile::protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !Profile::protocol_features().bits();
        if unknown != 0 {
            return Err(refused(format!("the front end accepted protocol features not offered: {unknown:#x}")));
        }
        self.acknowledges = features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0;
        self.protocol = Some(features);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.options.queues))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ask(move |port| port.enable(index, enable))
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = self.disk.config_space(self.options.queues);
        let end = offset.checked_add(size).map(|end| end as usize);
        let bytes = end.and_then(|end| space.get(offset as usize..end));
        bytes.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // A guest can provoke this message by writing anywhere; it must not lose its disk for that.
        tracing::warn!(disk = self.disk.name, offset, "write to the config space ignored: none of it can be written");
        Ok(())
    }

    fn get_inflight_fd(&mut self, wish: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        InflightArea::create(wish.num_queues, wish.queue_size).map_err(Error::ReqHandlerError)
    }

    fn set_inflight_fd(&mut self, said: &VhostUserInflight, file: File) -> Result<()> {
        shared::check(&file, self.options.trust).map_err(Error::ReqHandlerError)?;
        let place = self.mappings.take().map_err(refused)?;
        let area = InflightArea::open(said, file, place).map_err(Error::ReqHandlerError)?;
        self.logged = true;
        self.inflight = Some(area.clone());
        self.on_port(move |port| port.set_inflight(&area))
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no display"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("a disk shares no objects"))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("a disk has no state to migrate"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no state to migrate"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("a disk shares no memory of its own"))
    }

    fn set_log_base(&mut self, said: &VhostUserLog, file: File) -> Result<()> {
        shared::check(&file, self.options.trust).map_err(Error::ReqHandlerError)?;
        let place = self.mappings.take().map_err(refused)?;
        let log = DirtyLog::open(said, file, &self.map, place).map_err(Error::ReqHandlerError)?;
        self.log = Some(log.clone());
        self.on_port(move |port| port.set_log(log))
    }
}
