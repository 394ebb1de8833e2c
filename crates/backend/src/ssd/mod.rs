//! The files and block devices of the SSD store: opened, locked, checked and cut into one region for each worker.
//!
//! Owns them as long as the store is in service. Never knows what is in a region: the store does. Invariants: all of
//! them belong to one store, made at one time for as many workers as there are; nothing that holds something else is
//! written to; a store that does not fit is written over only if the configuration allows it.

mod device;
mod error;
mod header;
mod layout;
mod region;

pub use error::SsdError;
pub use header::SetId;
pub use region::SsdRegion;

use device::Device;
use header::{Header, Start};
use layout::Layout;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use undercroft_cache::ssd::memory_bytes_for;
use undercroft_config::SsdPlan;

/// The files and devices of one store, in the order of the configuration.
#[derive(Debug)]
pub struct SsdDevices {
    devices: Vec<(Device, Layout)>,
    id: SetId,
    made: Option<String>,
}

/// What one of them is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdDeviceInfo {
    /// As configured.
    pub path: String,
    /// Whether it is a block device.
    pub is_device: bool,
    /// Bytes of it that are used.
    pub used_bytes: u64,
    /// Bytes of each worker's region.
    pub region_bytes: u64,
}

impl SsdDevices {
    /// Opens what the plan names for so many `workers`, and makes a store of it if it holds nothing, or another one
    /// that may be written over.
    ///
    /// # Errors
    /// See [`SsdError`]: nothing has been written then, but for a new store that was made in part.
    pub fn open(plan: &SsdPlan, workers: u32) -> Result<Self, SsdError> {
        let mut devices = Vec::new();
        match Self::prepare(plan, workers, &mut devices) {
            Ok((id, made)) => Ok(Self { devices, id, made }),
            Err(why) => {
                devices.into_iter().for_each(|(device, _)| device.give_up());
                Err(why)
            }
        }
    }

    /// Opens all of them, and finds or makes the store on them: its number, and why it was made.
    fn prepare(
        plan: &SsdPlan,
        workers: u32,
        devices: &mut Vec<(Device, Layout)>,
    ) -> Result<(SetId, Option<String>), SsdError> {
        let (count, mut tables_bytes) = (plan.paths.len() as u32, 0);
        for (path, number) in plan.paths.iter().zip(0..) {
            let device = Device::open(path, plan.size_bytes)?;
            let layout = Layout::of(device.used_bytes, number, count, workers, plan.segment_bytes);
            let bytes = device.used_bytes;
            devices.push((device, layout));
            tables_bytes += memory_bytes_for(layout.region_bytes, plan.segment_bytes) * u64::from(workers);
            if !layout.is_large_enough() {
                return Err(SsdError::TooSmall {
                    path: path.display().to_string(),
                    bytes,
                    least_bytes: layout.least_bytes(),
                    workers,
                    segment_bytes: plan.segment_bytes,
                });
            }
        }
        if tables_bytes > plan.memory_bytes {
            let path = plan.paths.first().map_or(Path::new(""), |p| p).display().to_string();
            return Err(SsdError::NoMemory { path, bytes: tables_bytes, given_bytes: plan.memory_bytes });
        }
        let is_new = devices.iter().all(|(device, _)| device.start == Start::Empty);
        match fit(devices) {
            Fit::Store(id) => Ok((id, None)),
            Fit::None(_) if is_new => Ok((format(devices)?, Some("there was none".to_owned()))),
            Fit::None(why) if plan.format => Ok((format(devices)?, Some(why))),
            Fit::None(why) => {
                let path = plan.paths.first().map_or(Path::new(""), |p| p).display().to_string();
                Err(SsdError::Misfit { path, why })
            }
        }
    }

    /// Those that another process has open, and passes on: each path's descriptors, as [`SsdDevices::descriptors`] gave
    /// them. Nothing is written, and they are locked as they were there.
    ///
    /// # Errors
    /// See [`SsdError`]: they are not those of the store `id`, as the plan has it.
    pub fn passed(plan: &SsdPlan, workers: u32, id: SetId, files: Vec<Vec<OwnedFd>>) -> Result<Self, SsdError> {
        let path = plan.paths.first().map_or(Path::new(""), |p| p).display().to_string();
        let misfit = |why: &str| SsdError::Misfit { path: path.clone(), why: why.to_owned() };
        if files.len() != plan.paths.len() {
            return Err(misfit("there are other files"));
        }
        let (count, mut devices) = (plan.paths.len() as u32, Vec::new());
        for ((path, number), files) in plan.paths.iter().zip(0..).zip(files) {
            let device = Device::passed(path, plan.size_bytes, files)?;
            let layout = Layout::of(device.used_bytes, number, count, workers, plan.segment_bytes);
            devices.push((device, layout));
        }
        match fit(&devices) {
            Fit::Store(found) if found == id => Ok(Self { devices, id, made: None }),
            Fit::Store(_) => Err(misfit("it is another store")),
            Fit::None(why) => Err(misfit(&why)),
        }
    }

    /// What another process needs to go on with each of them.
    pub fn descriptors(&self) -> impl Iterator<Item = Vec<BorrowedFd<'_>>> {
        self.devices.iter().map(|(device, _)| device.descriptors())
    }

    /// Locks all of them, or finds that they are.
    ///
    /// # Errors
    /// One that somebody else uses.
    pub fn claim(&self) -> Result<(), SsdError> {
        self.devices.iter().try_for_each(|(device, _)| device.claim())
    }

    /// What tells this store from any other.
    pub fn id(&self) -> SetId {
        self.id
    }

    /// Why the store was made anew just now; `None` if it is as it was left.
    pub fn made(&self) -> Option<&str> {
        self.made.as_deref()
    }

    /// The path of one of them, as configured.
    pub fn path(&self, device: usize) -> String {
        self.devices.get(device).map_or(String::new(), |(device, _)| device.path.display().to_string())
    }

    /// What they are like.
    pub fn info(&self) -> impl Iterator<Item = SsdDeviceInfo> + '_ {
        self.devices.iter().map(|(device, layout)| SsdDeviceInfo {
            path: device.path.display().to_string(),
            is_device: device.file.is_device,
            used_bytes: layout.used_bytes,
            region_bytes: layout.region_bytes,
        })
    }

    /// What worker number `worker` has of each of them.
    pub fn regions(&self, worker: u32) -> Vec<SsdRegion> {
        let of = |(device, layout): &(Device, Layout)| {
            SsdRegion::new(device.file.clone(), layout.region_start(worker), layout.region_bytes)
        };
        self.devices.iter().filter(|(_, layout)| worker < layout.regions).map(of).collect()
    }
}

/// What is on all devices together.
enum Fit {
    /// The store that is wanted.
    Store(SetId),
    /// Not that; why.
    None(String),
}

/// Whether the store that is wanted is on all of them.
fn fit(devices: &[(Device, Layout)]) -> Fit {
    let mut known: Option<SetId> = None;
    for (device, wanted) in devices {
        let path = device.path.display();
        let found = match &device.start {
            Start::Header(header) => header,
            Start::Other(why) => return Fit::None(format!("{path}: {why}")),
            _ => return Fit::None(format!("{path} holds none, and others do")),
        };
        if let Some(why) = wanted.misfit(&found.layout) {
            return Fit::None(format!("{path}: {why}"));
        }
        if !device.has(wanted) {
            return Fit::None(format!("{path} was cut off"));
        }
        if *known.get_or_insert(found.id) != found.id {
            return Fit::None(format!("{path} belongs to another store than the first"));
        }
    }
    known.map_or_else(|| Fit::None("there is none".to_owned()), Fit::Store)
}

/// Makes a store of all of them.
fn format(devices: &[(Device, Layout)]) -> Result<SetId, SsdError> {
    let first = devices.first().map_or(Path::new(""), |(d, _)| &d.path);
    let id = random_id().map_err(|e| SsdError::io(first, "making a number for the store", e))?;
    for (device, layout) in devices {
        device.format(&Header { id, layout: *layout })?;
    }
    Ok(id)
}

/// A number that nobody else has.
///
/// # Errors
/// The kernel gives none.
pub fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
}

#[cfg(test)]
mod tests;
