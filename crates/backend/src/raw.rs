//! Raw images: a file or a block device, byte for byte, through io_uring and past the page cache.
//!
//! Owns the open image and the operations under way on it. Never retries what the disk refused, but for the two
//! cases where another call does the same. Invariant: an operation that has not come back is in the engine.

use super::detect::{self, Magic};
use super::failures::{FailureLog, io_error};
use super::registry::InUse;
use super::{Backend, Geometry, ImageFiles, ImageSpec, OpenError, OpenOptions, layers};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use undercroft_cache::{Base, DiskId, Extent, Io, IoDone, IoError, IoKind, OpId, limits};
use undercroft_host::{Action, Claim, DiskFile, Engine, FileDone, FileId, FileOp, claim};

/// Bytes that are looked at to tell a text from a disk.
const TEXT_BYTES: usize = 4096;
/// Smallest unit in which guests address a disk.
const SECTOR: u64 = 512;

/// A raw image.
pub struct Raw {
    engine: Engine<Token>,
    file: DiskFile,
    files: Option<ImageFiles>,
    disk: Disk,
    /// Operations that need another call; empty between turns.
    again: Vec<FileDone<Token>>,
    base: Option<Base>,
    /// Released last.
    _claim: InUse,
}

/// What does not change while operations come and go, or hardly.
struct Disk {
    geometry: Geometry,
    location: String,
    direct: bool,
    is_device: bool,
    /// The format was guessed, so a guest must not turn its disk into another format.
    guessed: bool,
    /// The file system knows `FALLOC_FL_ZERO_RANGE` (assumed until it says no).
    zero_range: bool,
    failures: FailureLog,
}

/// What an operation in the engine belongs to.
#[derive(Debug)]
struct Token {
    op: OpId,
    disk: DiskId,
    kind: IoKind,
    offset: u64,
    len: u64,
    /// Decided before it started.
    verdict: Option<IoError>,
    stage: Stage,
    action: Action,
}

/// Which call of an operation is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The call that fits best.
    First,
    /// The call that does the same, after the first was not supported.
    Fallback,
    /// `fdatasync`, after what had to become durable.
    Sync,
}

impl Raw {
    /// Opens the image.
    pub(super) fn open(
        spec: &ImageSpec,
        file: DiskFile,
        not_direct: Option<String>,
        guessed: bool,
        options: &OpenOptions,
    ) -> Result<Self, OpenError> {
        let image = || spec.location.clone();
        let in_use = InUse::claim(file.id, &spec.location, &spec.location, !spec.read_only)?;
        let looks = check_size(spec, &file)?;
        lock(&file, &spec.location, spec.read_only, false)?;
        let files = ImageFiles::of([(file.clone(), false)]);
        let io = |doing, source| OpenError::Io { image: image(), doing, source };
        let (engine, no_ring) =
            Engine::new(file.file.clone(), options.engine).map_err(|e| io("setting up I/O for the image", e))?;
        if let Some(why) = no_ring {
            tracing::warn!(image = spec.location, "using threads instead of io_uring, which is slower: {why}");
        }
        if let Some(why) = not_direct {
            warn_not_direct(&spec.location, &why);
        }
        if let Some((looks, remedy)) = looks {
            let what = "served as raw, as asked, but it begins like an image of format";
            tracing::warn!(image = spec.location, "{what} {looks}; {remedy}");
        }
        let geometry = geometry(spec, &file, 0);
        let base = if spec.read_only { base(&file) } else { None };
        Ok(Self {
            engine,
            base,
            disk: Disk {
                geometry,
                location: spec.location.clone(),
                direct: file.direct,
                is_device: file.is_device,
                guessed: guessed && !spec.read_only,
                zero_range: true,
                failures: FailureLog::default(),
            },
            again: Vec::new(),
            file,
            files,
            _claim: in_use,
        })
    }
}

/// What a raw image in `file` is like, without a lock; see [`super::probe`].
pub(super) fn probe(spec: &ImageSpec, file: &DiskFile) -> Result<Geometry, OpenError> {
    check_size(spec, file)?;
    // Whoever has the image may let it grow meanwhile, by less than this.
    Ok(geometry(spec, file, 1 << 40))
}

/// Refuses a size that no disk has. What other format it looks like, if it does, and what helps.
fn check_size(spec: &ImageSpec, file: &DiskFile) -> Result<Option<(&'static str, &'static str)>, OpenError> {
    let (image, size) = (|| spec.location.clone(), file.size_bytes);
    if size == 0 {
        return Err(OpenError::Empty { image: image(), by: format!("truncate -s 10G {}", image()) });
    }
    let (looks, unit) = (other_format(file), u64::from(file.align).max(SECTOR));
    if size.is_multiple_of(unit) {
        return Ok(looks);
    }
    if let Some((looks, remedy)) = looks {
        return Err(OpenError::NotRaw { image: image(), looks, size, remedy });
    }
    if detect::read(file, 0, TEXT_BYTES).is_ok_and(|start| detect::is_text(&start)) {
        let what = "it holds a text, not the sectors of a disk".to_owned();
        return Err(OpenError::NotADisk { image: image(), what });
    }
    let rounded = size.next_multiple_of(unit);
    Err(OpenError::OddSize { image: image(), size, unit: unit as u32, rounded })
}

/// What an image of a good size is like. Whether holes can be punched is tried so many bytes `behind` its end.
fn geometry(spec: &ImageSpec, file: &DiskFile, behind: u64) -> Geometry {
    let (can_discard, can_write_zeroes) = if spec.read_only {
        (false, false)
    } else if file.is_device {
        // The kernel writes the zeroes itself where the device cannot.
        (device_can_discard(file), true)
    } else {
        let can = can_punch(file, behind);
        (can, can)
    };
    Geometry {
        size_bytes: file.size_bytes,
        align: file.align.max(SECTOR as u32),
        read_only: spec.read_only,
        can_discard,
        can_write_zeroes,
    }
}

impl Disk {
    /// Why an operation cannot be carried out, if so.
    fn refuse(&self, io: &Io) -> Option<IoError> {
        let g = &self.geometry;
        if io.offset.checked_add(io.len).is_none_or(|end| end > g.size_bytes) {
            return Some(IoError::Invalid);
        }
        let align = u64::from(g.align);
        match io.kind {
            IoKind::Flush | IoKind::Status => None,
            _ if io.len == 0 || !io.offset.is_multiple_of(align) || !io.len.is_multiple_of(align) => {
                Some(IoError::Invalid)
            }
            IoKind::Read => (io.len != u64::from(io.buf.len)).then_some(IoError::Invalid),
            _ if g.read_only => Some(IoError::ReadOnly),
            IoKind::Write { .. } if io.len != u64::from(io.buf.len) => Some(IoError::Invalid),
            IoKind::Write { .. } if io.offset == 0 && self.guessed => {
                let start = io.buf.pieces().next().unwrap_or_default();
                (detect::magic(start) != detect::Magic::None).then_some(IoError::ReadOnly)
            }
            IoKind::Write { .. } => None,
            IoKind::Discard => (!g.can_discard).then_some(IoError::Unsupported),
            IoKind::WriteZeroes { .. } => (!g.can_write_zeroes).then_some(IoError::Unsupported),
        }
    }

    /// The call to start an operation with.
    fn first(&self, kind: IoKind) -> Action {
        match kind {
            IoKind::Read => Action::Read,
            IoKind::Write { fua } => Action::Write { dsync: fua },
            IoKind::Flush => Action::Sync,
            IoKind::Discard if self.is_device => Action::DeviceDiscard,
            IoKind::Discard | IoKind::WriteZeroes { unmap: true, .. } => Action::PunchHole,
            IoKind::WriteZeroes { .. } if self.zero_range => Action::ZeroRange,
            IoKind::WriteZeroes { .. } => Action::PunchHole,
            IoKind::Status => Action::Map,
        }
    }

    /// The next call of an operation after one with this result, if it needs one.
    fn next(&mut self, t: &Token, result: Result<(), Errno>) -> Option<(Stage, Action)> {
        if t.verdict.is_some() {
            return None;
        }
        match (t.kind, t.stage, result) {
            (IoKind::WriteZeroes { fua: true, .. }, Stage::First | Stage::Fallback, Ok(())) => {
                Some((Stage::Sync, Action::Sync))
            }
            // Without RWF_DSYNC: write, then sync.
            (IoKind::Write { fua: true }, Stage::First, Err(Errno::OPNOTSUPP)) => {
                Some((Stage::Fallback, Action::Write { dsync: false }))
            }
            (IoKind::Write { fua: true }, Stage::Fallback, Ok(())) => Some((Stage::Sync, Action::Sync)),
            (IoKind::WriteZeroes { .. }, Stage::First, Err(Errno::OPNOTSUPP)) if t.action == Action::ZeroRange => {
                self.zero_range = false;
                Some((Stage::Fallback, Action::PunchHole))
            }
            (IoKind::WriteZeroes { .. }, Stage::First, Err(Errno::OPNOTSUPP)) => {
                Some((Stage::Fallback, Action::ZeroRange))
            }
            _ => None,
        }
    }

    fn finish(&mut self, done: FileDone<Token>) -> IoDone {
        let t = done.token;
        let result = match (t.verdict, done.result) {
            (Some(e), _) => Err(e),
            (None, Ok(())) => Ok(()),
            // A discard is a hint.
            (None, Err(Errno::OPNOTSUPP)) if t.kind == IoKind::Discard => Ok(()),
            (None, Err(e)) => {
                self.failures.note(&self.location, t.kind, t.offset, t.len, std::io::Error::from(e));
                Err(io_error(e))
            }
        };
        let mut extents = Vec::new();
        if t.kind == IoKind::Status && result.is_ok() {
            extents.extend(done.regions.iter().map(|r| Extent { len: r.len, hole: r.hole, zero: r.hole }));
            if extents.is_empty() {
                extents.push(Extent { len: t.len, hole: false, zero: false });
            }
        }
        IoDone { op: t.op, disk: t.disk, buf: done.buf, result, extents }
    }
}

impl Backend for Raw {
    fn geometry(&self) -> &Geometry {
        &self.disk.geometry
    }

    fn submit(&mut self, io: Io) {
        let verdict = self.disk.refuse(&io);
        let action = if verdict.is_some() { Action::Nothing } else { self.disk.first(io.kind) };
        let Io { op, disk, kind, offset, len, buf, .. } = io;
        let token = Token { op, disk, kind, offset, len, verdict, stage: Stage::First, action };
        self.engine.submit(FileOp { token, action, offset, len, buf });
    }

    fn kick(&mut self) {
        self.engine.kick();
    }

    fn set_shared(&mut self, shared: bool) {
        self.engine.set_shared(shared);
    }

    fn holds_back(&self) -> bool {
        self.engine.holds_back()
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> bool {
        let Self { engine, disk, again, .. } = self;
        let more = engine.poll(limits::BATCH, |mut d| match disk.next(&d.token, d.result) {
            Some((stage, action)) => {
                (d.token.stage, d.token.action) = (stage, action);
                again.push(d);
            }
            None => done.push(disk.finish(d)),
        });
        if !again.is_empty() {
            for FileDone { token, buf, .. } in again.drain(..) {
                let (action, offset, len) = (token.action, token.offset, token.len);
                engine.submit(FileOp { token, action, offset, len, buf });
            }
            engine.kick();
        }
        more
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }

    fn files(&self) -> Option<ImageFiles> {
        self.files.clone()
    }

    fn take_base(&mut self) -> Option<Base> {
        self.base.take()
    }

    fn read_now(&self, offset: u64, to: &mut [u8]) -> Option<std::io::Result<()>> {
        use std::os::unix::fs::FileExt;
        Some(self.file.file.read_exact_at(to, offset))
    }

    fn describe(&self) -> String {
        let how = if self.disk.direct { "O_DIRECT" } else { "page cache" };
        let what = if self.disk.is_device { "raw device" } else { "raw" };
        format!("{what} ({}, {how})", self.engine.name())
    }

    fn inflight(&self) -> usize {
        self.engine.inflight()
    }
}

/// Says that an image goes through the page cache.
pub(super) fn warn_not_direct(image: &str, why: &str) {
    tracing::warn!(
        image,
        "going through the host page cache, which costs memory twice: {why}; keep the image on ext4, XFS or a block \
         device"
    );
}

/// Which other format a file that is to be served as raw begins like, and what to do if it is of that. LUKS is none of
/// them: guests encrypt raw disks so.
fn other_format(file: &DiskFile) -> Option<(&'static str, &'static str)> {
    match detect::magic(&detect::read(file, 0, detect::MAGIC_BYTES_MAX).ok()?) {
        Magic::None | Magic::Other("LUKS") => None,
        Magic::Qcow2 => Some(("qcow2", "give `format = \"qcow2\"` (`--format qcow2`), or no format: it is found out")),
        Magic::Other(name) => Some((name, "leave `format` out to be told how it can be served")),
    }
}

/// A disk that nobody writes is all base.
fn base(file: &DiskFile) -> Option<Base> {
    let state = layers::FileState::of(file, false).ok().flatten()?;
    const CLUSTER: u32 = 1 << 20;
    let clusters = file.size_bytes.div_ceil(u64::from(CLUSTER));
    let own = vec![0; usize::try_from(clusters.div_ceil(64)).ok()?];
    Some(Base { layer: layers::number(&[state]), size_bytes: file.size_bytes, cluster_bytes: CLUSTER, own })
}

/// Takes the locks that QEMU, too, takes on images.
pub(super) fn lock(file: &DiskFile, location: &str, read_only: bool, grows: bool) -> Result<(), OpenError> {
    match claim(file, read_only, grows) {
        Ok(Claim::Held) => Ok(()),
        Ok(Claim::NoLocks) => {
            tracing::warn!(
                image = location,
                "its file system has no locks, so nothing keeps other programs from writing to the image"
            );
            Ok(())
        }
        Ok(Claim::Taken(who)) => {
            let by = if who.is_empty() { String::new() } else { format!(": {}", who.join(", ")) };
            Err(OpenError::InUse { image: location.to_owned(), by })
        }
        Err(source) => Err(OpenError::Io { image: location.to_owned(), doing: "locking the image", source }),
    }
}

/// Whether the file system can punch holes: tried so many bytes `behind` the end of the file, where it changes nothing.
fn can_punch(file: &DiskFile, behind: u64) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let at = file.size_bytes.next_multiple_of(4096).saturating_add(behind);
    rustix::fs::fallocate(&**file.file, flags, at, 4096).is_ok()
}

/// Whether a block device does anything at a discard.
fn device_can_discard(file: &DiskFile) -> bool {
    let FileId::Device { number } = file.id else { return false };
    let dir = format!("/sys/dev/block/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    // A partition has its queue one level up.
    [Path::new(&dir).join("queue"), Path::new(&dir).join("../queue")].iter().any(|queue| {
        std::fs::read_to_string(queue.join("discard_max_bytes"))
            .is_ok_and(|s| s.trim().parse::<u64>().is_ok_and(|n| n > 0))
    })
}
