//! The fence around imago, on images whose tables nobody verified: what imago does to them ends at the disk.
#![cfg(feature = "imago")]

use imago::file::File;
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, StorageOpenOptions};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use undercroft_host::{Fence, FencedFile, with_bounded_stack};

/// An image of 16 MiB with a MiB of data.
fn image(path: &Path) {
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).output().expect("apt-get install qemu-utils");
        assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    };
    run("qemu-img", &["create", "-q", "-f", "qcow2", path.to_str().unwrap(), "16M"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 17 0 1M", path.to_str().unwrap()]);
}

fn word(data: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(data[at..at + 8].try_into().unwrap())
}

fn open(path: &Path, fence: &Arc<Fence>) -> FormatAccess<FencedFile> {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let options = StorageOpenOptions::new().filename(path).write(true);
    let file = FencedFile::new(File::from_open_file(file, options).unwrap(), Arc::clone(fence));
    let image = Qcow2::<FencedFile>::builder(file).write(true).backing(None).data_file(None);
    FormatAccess::new(image.open(DenyImplicitOpenGate::default()).unwrap())
}

/// Writes all over the disk, on a thread with the stack that threads have. True if something was refused.
fn write_everywhere(access: FormatAccess<FencedFile>) -> bool {
    let all = move || {
        let mut refused = false;
        for i in 0..64u64 {
            let write = || access.write(&[0x22u8; 65536][..], i << 18).and_then(|()| access.flush());
            let done = catch_unwind(AssertUnwindSafe(|| with_bounded_stack(write)));
            refused |= !matches!(done, Ok(Ok(())));
        }
        std::mem::forget(access);
        refused
    };
    std::thread::spawn(all).join().unwrap()
}

#[test]
fn nothing_is_written_before_it_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.qcow2");
    image(&path);
    let before = std::fs::read(&path).unwrap();
    let fence = Fence::new(65536, Vec::new());
    assert!(write_everywhere(open(&path, &fence)));
    assert!(std::fs::read(&path).unwrap() == before);
    fence.allow_writes();
    assert!(!write_everywhere(open(&path, &fence)), "a sound image is written to");
    assert!(!fence.tripped());
}

#[test]
fn without_refcounts_the_header_stays_and_the_thread_lives() {
    // The entry of the refcount table, for which imago calls itself until the stack is full; and the refcounts, for
    // which it takes the header's cluster for free.
    for table in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.qcow2");
        image(&path);
        let before = std::fs::read(&path).unwrap();
        let at = word(&before, 48);
        let at = if table { at } else { word(&before, at as usize) };
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&[0; 8], at).unwrap();
        let fence = Fence::new(65536, Vec::new());
        fence.allow_writes();
        assert!(write_everywhere(open(&path, &fence)));
        let after = std::fs::read(&path).unwrap();
        assert!(after[..48] == before[..48] && after[60..512] == before[60..512], "the header was changed");
    }
}

#[test]
fn a_recursion_without_end_becomes_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.qcow2");
    image(&path);
    let fence = Fence::new(65536, Vec::new());
    fence.allow_writes();
    let options = || StorageOpenOptions::new().filename(&path);
    let file = Arc::new(FencedFile::new(
        File::from_open_file(std::fs::File::open(&path).unwrap(), options()).unwrap(),
        Arc::clone(&fence),
    ));
    #[allow(unconditional_recursion)]
    fn again(file: &FencedFile) -> usize {
        use imago::Storage;
        file.mem_align() + std::hint::black_box(again(file))
    }
    let thread =
        std::thread::spawn(move || catch_unwind(AssertUnwindSafe(|| with_bounded_stack(|| again(&file)))).is_err());
    assert!(thread.join().unwrap());
}

#[test]
fn hidden_bits_are_not_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.qcow2");
    image(&path);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[3], 79).unwrap();
    file.write_all_at(&[0xff], 95).unwrap();
    let before = std::fs::read(&path).unwrap();
    let fence = Fence::new(65536, vec![(79, 3), (95, 0xff)]);
    let access = open(&path, &fence);
    let mut data = vec![0; 4096];
    access.read(&mut data, 8192).unwrap();
    assert!(data == [17; 4096]);
    drop(access);
    assert!(std::fs::read(&path).unwrap() == before);
}
