//! Opens a qcow2 image with all the images behind it.
//!
//! Owns the rules for what an image may refer to: raw and qcow2 files, read-only, no loops. Never serves I/O.
//! Invariant: every file of a chain is claimed and locked before the first byte of it is trusted.

use super::header::{self, Header, Refusal};
use super::own::own_clusters;
use crate::layers::{self, FileState};
use crate::registry::InUse;
use crate::{ImageFiles, OpenError, detect, raw};
use imago::file::File;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, StorageOpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use undercroft_cache::Base;
use undercroft_config::ImageSpec;
use undercroft_host::{Direct, DiskFile, Fence, FencedFile, FileId, Layout, OpenFile};

/// Images of one chain at most.
const DEPTH_MAX: usize = 64;
/// Largest map of an image's own clusters, in bytes: that of 32TiB in clusters of 64KiB.
const MAP_BYTES_MAX: u64 = 64 << 20;

/// An open chain.
pub(super) struct Chain {
    /// The top image, which holds the others.
    pub access: FormatAccess<FencedFile>,
    /// The top image's header.
    pub header: Header,
    /// The top image's file.
    pub file: DiskFile,
    /// What imago may do to it.
    pub fence: Arc<Fence>,
    /// Whether all files bypass the page cache.
    pub direct: bool,
    /// How many images there are.
    pub depth: usize,
    /// The images behind the top one, and what that has of its own.
    pub base: Option<Base>,
    /// All files, as they were found.
    pub files: Option<ImageFiles>,
    /// Released last.
    pub claims: Vec<Claimed>,
}

/// One file of an open chain: nobody else writes to it for as long as this is there.
pub(super) struct Claimed {
    /// Lets go of its locks when it is dropped, although imago has a copy of the descriptor: locks are of what both
    /// refer to.
    _locked: Arc<OpenFile>,
    /// Released after the locks, so that the next disk that may have the file finds it unlocked.
    _claim: InUse,
}

/// Opens the chain whose top is `file`.
pub(super) fn open(spec: &ImageSpec, file: DiskFile, not_direct: Option<&str>) -> Result<Chain, OpenError> {
    let mut opening = Opening {
        location: &spec.location,
        ids: Vec::new(),
        claims: Vec::new(),
        direct: true,
        states: Vec::new(),
        files: Vec::new(),
        found: None,
        base: None,
    };
    let top = file.clone();
    let (access, header, fence) = opening.qcow2(Path::new(&spec.location), file, not_direct, !spec.read_only)?;
    let Opening { ids, claims, direct, base, found: files, .. } = opening;
    Ok(Chain { access, header, file: top, fence, direct, depth: ids.len(), base, files, claims })
}

/// What the top image has of its own, and what the others are together; nothing if that cannot be told.
fn base(file: &DiskFile, header: &Header, states: &[Option<FileState>], backing_bytes: u64) -> Option<Base> {
    let behind: Vec<FileState> = states.get(1..).filter(|s| !s.is_empty())?.iter().cloned().collect::<Option<_>>()?;
    let read = |offset, bytes| detect::read(file, offset, bytes);
    match own_clusters(header, file.size_bytes, MAP_BYTES_MAX, read) {
        Ok(own) => Some(Base {
            layer: layers::number(&behind),
            size_bytes: backing_bytes,
            cluster_bytes: u32::try_from(header.cluster_bytes).ok()?,
            own: own?,
        }),
        Err(e) => {
            tracing::warn!("the tables of a qcow2 image cannot be read, so nothing of its base is shared: {e}");
            None
        }
    }
}

struct Opening<'a> {
    /// The disk that all is opened for.
    location: &'a str,
    ids: Vec<FileId>,
    claims: Vec<Claimed>,
    direct: bool,
    /// The files of the chain as they were when they were opened, the top first.
    states: Vec<Option<FileState>>,
    /// The files themselves, and whether each is read as qcow2.
    files: Vec<(DiskFile, bool)>,
    /// All of them, before any was changed.
    found: Option<ImageFiles>,
    /// That of the top image; what is opened last is the top.
    base: Option<Base>,
}

impl Opening<'_> {
    /// Claims and locks one file of the chain.
    fn enter(
        &mut self,
        image: &str,
        file: &DiskFile,
        not_direct: Option<&str>,
        write: bool,
        qcow2: bool,
    ) -> Result<(), OpenError> {
        let damaged = |what: &str| OpenError::Damaged { image: image.to_owned(), what: what.to_owned() };
        if self.ids.contains(&file.id) {
            return Err(damaged("its chain of backing images leads back to itself"));
        }
        if self.ids.len() == DEPTH_MAX {
            return Err(damaged("its chain of backing images has more than 64 links"));
        }
        self.ids.push(file.id);
        let claim = InUse::claim(file.id, image, self.location, write)?;
        self.claims.push(Claimed { _locked: Arc::clone(&file.file), _claim: claim });
        raw::lock(file, image, !write, write)?;
        let state = FileState::of(file, qcow2).map_err(|e| io_error(image, "asking for its state", e))?;
        self.states.push(state);
        self.files.push((file.clone(), qcow2));
        if let Some(why) = not_direct {
            raw::warn_not_direct(image, why);
            self.direct = false;
        }
        Ok(())
    }

    fn qcow2(
        &mut self,
        path: &Path,
        file: DiskFile,
        not_direct: Option<&str>,
        write: bool,
    ) -> Result<(FormatAccess<FencedFile>, Header, Arc<Fence>), OpenError> {
        let image = path.display().to_string();
        self.enter(&image, &file, not_direct, write, true)?;
        let header = read_header(&image, &file)?;
        if write {
            header.may_be_written().map_err(|r| refused(&image, r))?;
        } else if header.corrupt || header.dirty {
            tracing::warn!(image, "the image is marked as damaged or not closed properly; it is only read");
        }
        let fence = fence(&image, &file, &header, write)?;
        let backing = match &header.backing {
            None => None,
            Some(name) => Some(self.backing(path, name, header.backing_format.as_deref()).map_err(|source| {
                match source {
                    // Already a sentence about the chain.
                    OpenError::Backing { .. } => source,
                    _ => OpenError::Backing { image: image.clone(), source: Box::new(source) },
                }
            })?),
        };
        if self.ids.first() == Some(&file.id)
            && let Some(backing) = &backing
        {
            self.base = base(&file, &header, &self.states, backing.size());
        }
        if self.ids.first() == Some(&file.id) {
            self.found = ImageFiles::of(std::mem::take(&mut self.files));
        }
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let storage = storage(path, &file, write, Arc::clone(&fence))?;
            let qcow2 = Qcow2::<FencedFile>::builder(storage).write(write).backing(backing).data_file(None);
            qcow2.open(DenyImplicitOpenGate::default())
        }));
        match opened {
            Ok(Ok(qcow2)) => Ok((FormatAccess::new(qcow2), header, fence)),
            Ok(Err(e)) => Err(imago_error(&image, e)),
            Err(_) => Err(OpenError::Damaged { image, what: "its tables make no sense".to_owned() }),
        }
    }

    /// Opens the image that `overlay` has behind it.
    fn backing(
        &mut self,
        overlay: &Path,
        name: &str,
        format: Option<&str>,
    ) -> Result<FormatAccess<FencedFile>, OpenError> {
        let path = resolve(overlay, name)?;
        let image = path.display().to_string();
        let (file, not_direct) =
            DiskFile::open(&path, true, Direct::Prefer).map_err(|e| OpenError::opening(&image, true, e))?;
        let magic = || {
            let start = detect::read(&file, 0, detect::MAGIC_BYTES_MAX);
            start.map(|s| detect::magic(&s)).map_err(|e| io_error(&image, "reading its first sector", e))
        };
        let is_qcow2 = match format {
            Some("qcow2") => true,
            Some("raw" | "file" | "host_device") => false,
            Some(other) => return Err(other_format(&image, other)),
            None => match magic()? {
                detect::Magic::Qcow2 => true,
                detect::Magic::None => false,
                detect::Magic::Other(other) => return Err(other_format(&image, other)),
            },
        };
        if is_qcow2 {
            return Ok(self.qcow2(&path, file, not_direct.as_deref(), false)?.0);
        }
        self.enter(&image, &file, not_direct.as_deref(), false, false)?;
        let storage = storage(&path, &file, false, Fence::new(0, Vec::new())).map_err(|e| imago_error(&image, e))?;
        let raw = Raw::builder(storage).open(DenyImplicitOpenGate::default()).map_err(|e| imago_error(&image, e))?;
        Ok(FormatAccess::new(raw))
    }
}

/// The path that an image's reference to another means: relative to the directory of the first.
fn resolve(overlay: &Path, name: &str) -> Result<PathBuf, OpenError> {
    let name = name.strip_prefix("file:").unwrap_or(name);
    let first = name.split('/').next().unwrap_or_default();
    if first.contains(':') {
        return Err(OpenError::Unsupported {
            image: name.to_owned(),
            feature: "a backing image that is not a file".to_owned(),
            remedy: "let qemu-nbd open the whole chain and name the disk `nbd+unix:///?socket=PATH`, \
                     or rebase it: `qemu-img rebase`"
                .to_owned(),
        });
    }
    Ok(overlay.parent().unwrap_or(Path::new("")).join(name))
}

fn refused(image: &str, refusal: Refusal) -> OpenError {
    match refusal {
        Refusal::Damaged(what) => OpenError::Damaged { image: image.to_owned(), what },
        Refusal::Other => OpenError::NotQcow2 { image: image.to_owned() },
        Refusal::Unsupported { feature, remedy } => OpenError::Unsupported { image: image.to_owned(), feature, remedy },
    }
}

/// The fence around an image. One that is written to has its tables kept in order.
fn fence(image: &str, file: &DiskFile, header: &Header, write: bool) -> Result<Arc<Fence>, OpenError> {
    if !write {
        return Ok(Fence::new(header.cluster_bytes, header.hidden_bits()));
    }
    let l1 = detect::read(file, header.l1_offset, header.l1_entries as usize * 8)
        .map_err(|e| io_error(image, "reading its L1 table", e))?;
    let layout = Layout {
        l1_offset: header.l1_offset,
        l1_entries: header.l1_entries,
        reftable_offset: header.reftable_offset,
        reftable_clusters: header.reftable_clusters,
        refcount_bits: header.refcount_bits,
    };
    Ok(Fence::in_order(header.cluster_bytes, header.hidden_bits(), &layout, &l1))
}

/// Reads and checks the header and the L1 table.
pub(super) fn read_header(image: &str, file: &DiskFile) -> Result<Header, OpenError> {
    if file.size_bytes == 0 {
        return Err(OpenError::Empty { image: image.to_owned(), by: format!("qemu-img create -f qcow2 {image} 10G") });
    }
    let read = |offset, len| detect::read(file, offset, len).map_err(|e| io_error(image, "reading its header", e));
    let start = read(0, 512)?;
    let start = read(0, header::bytes_needed(&start))?;
    let header = header::parse(&start, file.size_bytes).map_err(|r| refused(image, r))?;
    let l1 = read(header.l1_offset, header.l1_entries as usize * 8)?;
    header::check_l1(&l1, &header, file.size_bytes).map_err(|r| refused(image, r))?;
    if header.size_bytes == 0 {
        return Err(OpenError::Empty { image: image.to_owned(), by: format!("qemu-img resize {image} 10G") });
    }
    Ok(header)
}

/// The file as imago sees it. The descriptor is a copy of ours, so our locks hold for it too, and end with ours.
fn storage(path: &Path, file: &DiskFile, write: bool, fence: Arc<Fence>) -> io::Result<FencedFile> {
    let options = StorageOpenOptions::new().filename(path).write(write).direct(file.direct);
    Ok(FencedFile::new(File::from_open_file(file.file.try_clone()?, options)?, fence))
}

fn io_error(image: &str, doing: &'static str, source: io::Error) -> OpenError {
    OpenError::Io { image: image.to_owned(), doing, source }
}

fn imago_error(image: &str, e: io::Error) -> OpenError {
    if e.raw_os_error().is_none() {
        return OpenError::Damaged { image: image.to_owned(), what: e.to_string() };
    }
    io_error(image, "opening the image", e)
}

fn other_format(image: &str, format: &str) -> OpenError {
    OpenError::Unsupported {
        image: image.to_owned(),
        feature: format!("a backing image of format {format}"),
        remedy: "let qemu-nbd open the whole chain and name the disk `nbd+unix:///?socket=PATH`".to_owned(),
    }
}
