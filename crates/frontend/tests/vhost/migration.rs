//! What a guest that migrates finds in the log of its dirty memory: the pages that the device has written, and no
//! others.
//!
//! Owns the log's file. Never uses a socket. Invariant: every test says which pages are marked, to the last bit.

use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use undercroft_frontend::vhost::parts::{DirtyLog, LOG_ALL};
use vhost::vhost_user::message::VhostUserLog;

/// A device with a log that is in use, and the log's file.
fn logged(queues: u16) -> (Rig, File) {
    let mut rig = Rig::new(geometry(MIB), queues, 64, LOG_ALL);
    let (log, file) = log_of(&rig);
    rig.port.set_log(log);
    rig.port.set_features(port_features());
    (rig, file)
}

fn log_of(rig: &Rig) -> (DirtyLog, File) {
    let bytes = DirtyLog::bytes_for(&rig.guest.map);
    let fd = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    let file = File::from(fd);
    let said = VhostUserLog::new(bytes, 0);
    (DirtyLog::open(&said, file.try_clone().unwrap(), &rig.guest.map, ()).unwrap(), file)
}

fn port_features() -> u64 {
    Profile::new(&info(geometry(MIB))).features()
}

/// The pages marked, which are so no longer.
fn marked(file: &File) -> Vec<u64> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    file.write_all_at(&vec![0; bytes.len()], 0).unwrap();
    (0..bytes.len() as u64 * 8).filter(|page| bytes[*page as usize / 8] >> (page % 8) & 1 == 1).collect()
}

fn page(guest: u64) -> u64 {
    guest / 4096
}

/// The page of a queue's used ring.
fn used(queue: u16) -> u64 {
    page(Guest::ring(queue)[2])
}

#[test]
fn exactly_what_is_written_is_marked() {
    let (mut rig, file) = logged(1);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]), (OK, 513));
    assert_eq!(marked(&file), [used(0), page(STATUS), page(BUFFER)]);
    assert_eq!(rig.request(OUT, 0, &[(BUFFER, 512, 0)]), (OK, 1));
    assert_eq!(marked(&file), [used(0), page(STATUS)], "a write writes nothing but its status");
    assert_eq!(rig.request(FLUSH_T, 0, &[]), (OK, 1));
    assert_eq!(marked(&file), [used(0), page(STATUS)]);
    // Two pages from an odd place on, in buffers of their own, the second across two regions of memory.
    let (first, second) = (BUFFER + 0x2e00, DATA_SPLIT - 0x100);
    assert_eq!(rig.request(IN, 0, &[(first, 0x400, WRITE), (second, 0x200, WRITE)]).0, OK);
    let pages = [used(0), page(STATUS), page(first), page(first) + 1, page(DATA_SPLIT) - 1, page(DATA_SPLIT)];
    assert_eq!(marked(&file), pages);
    assert_eq!(rig.request(GET_ID, 0, &[(BUFFER + 0xff0, 20, WRITE)]).0, OK);
    assert_eq!(marked(&file), [used(0), page(STATUS), page(BUFFER), page(BUFFER) + 1], "20 bytes across two pages");
    assert_eq!(rig.request(77, 0, &[]).0, UNSUPP);
    assert_eq!(marked(&file), [used(0), page(STATUS)], "refused at once");
}

#[test]
fn wishes_for_kicks_are_marked() {
    let (mut rig, file) = logged(2);
    rig.port.arm();
    assert_eq!(marked(&file), [used(0), used(1)]);
    rig.port.set_features(port_features() & !EVENT_IDX);
    marked(&file);
    rig.port.disarm();
    assert_eq!(marked(&file), [used(0), used(1)]);
}

#[test]
fn nothing_is_marked_before_logging_is_on_and_after_it_is_off() {
    let mut rig = Rig::new(geometry(MIB), 1, 64, LOG_ALL);
    let (log, file) = log_of(&rig);
    rig.port.set_log(log);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]).0, OK);
    assert_eq!(marked(&file), [0; 0]);
    rig.guest.offer(0, 0);
    let under_way = rig.take();
    // Switched on while a request is under way.
    rig.port.set_features(port_features());
    rig.serve(under_way[0]);
    rig.port.flush(SEND_BYTES);
    assert_eq!(marked(&file), [used(0), page(STATUS), page(BUFFER)]);
    assert_eq!(rig.guest.used(0).len(), 1);
    rig.port.set_features(port_features() & !LOG_ALL);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]).0, OK);
    assert_eq!(marked(&file), [0; 0]);
}

#[test]
fn a_used_ring_that_is_not_to_be_logged_is_not() {
    let (mut rig, file) = logged(1);
    let at = RingAddresses { log: None, ..Guest::addresses(0) };
    rig.port.set_addresses(0, at).unwrap();
    marked(&file);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]).0, OK);
    assert_eq!(marked(&file), [page(STATUS), page(BUFFER)]);
    // And again while it runs; moving it writes nothing.
    rig.port.set_addresses(0, Guest::addresses(0)).unwrap();
    assert_eq!(rig.request(FLUSH_T, 0, &[]).0, OK);
    assert_eq!(marked(&file), [used(0), page(STATUS)]);
    for log in [0x4_0000 - 4, 0x8_0000, u64::MAX, u64::MAX - 0x1000] {
        let at = RingAddresses { log: Some(log), ..Guest::addresses(0) };
        assert_eq!(rig.port.set_addresses(0, at), Err(QueueRefusal::LogPlace), "{log:#x} is no memory of the guest");
    }
    assert_eq!(rig.request(FLUSH_T, 0, &[]).0, OK);
    assert_eq!(marked(&file), [used(0), page(STATUS)], "refused, and as it was");
}

/// A process that died may have written and not marked: QEMU connects anew, says that logging is on, and hands the log
/// over last.
#[test]
fn a_session_that_begins_while_a_guest_migrates_marks_all_of_its_memory() {
    let mut rig = Rig::new(geometry(MIB), 1, 64, 0);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]).0, OK, "served without a log");
    let (log, file) = log_of(&rig);
    rig.port.set_log(log.clone());
    let all: Vec<u64> = rig.guest.map.regions().iter().flat_map(|r| page(r.guest)..page(r.guest + r.len)).collect();
    assert_eq!(marked(&file), all);
    rig.port.set_log(log);
    assert_eq!(marked(&file), [0; 0], "another log while it goes on begins where the last one ends");
}

#[test]
fn a_guest_that_was_moved_to_memory_elsewhere_is_marked_where_it_is_now() {
    let (mut rig, file) = logged(1);
    let whole = Arc::clone(&rig.guest.map);
    rig.port.set_memory(Arc::new((*whole).clone()));
    marked(&file);
    assert_eq!(rig.request(IN, 0, &[(BUFFER, 512, WRITE)]).0, OK);
    assert_eq!(marked(&file), [used(0), page(STATUS), page(BUFFER)]);
}

/// What a former process took and did not do is done before a queue stops: where its guest goes on, nobody knows of it.
#[test]
fn a_queue_that_stops_finishes_what_a_former_process_took() {
    for disabled in [false, true] {
        let mut rig = Rig::new(geometry(MIB), 1, 64, 0);
        let (said, record) = InflightArea::create(1, 64).unwrap();
        let area = InflightArea::open(&said, record, ()).unwrap();
        rig.port.sever();
        rig.connect(port_features());
        rig.port.set_inflight(&area);
        rig.start(0, 0, true);
        rig.guest.header(HEADER, IN, 0);
        rig.guest.chain(0, 0, &[(HEADER, 16, 0), (BUFFER, 512, WRITE), (STATUS, 1, WRITE)]);
        rig.guest.offer(0, 0);
        assert_eq!(rig.take().len(), 1, "taken, and never answered: its process is gone");
        let mut next = Rig::new(geometry(MIB), 1, 64, 0);
        next.guest = std::mem::replace(&mut rig.guest, Guest::new(1, 64));
        next.port.sever();
        next.connect(port_features());
        next.port.set_inflight(&area);
        next.start(0, 0, true);
        if disabled {
            // As QEMU does before it stops one.
            next.port.enable(0, false).unwrap();
        }
        // Posted by a guest that runs until its queue has stopped: that is for whoever goes on.
        next.guest.offer(0, 0);
        let (done, base) = sync_channel(1);
        next.port.stop(0, done).unwrap();
        assert!(base.try_recv().is_err(), "a chain is still to be done");
        assert_eq!(next.turn(), 1);
        assert_eq!((base.try_recv(), next.guest.used(0)), (Ok(1), vec![(0, 513)]));
        assert_eq!(next.turn(), 0, "nothing else is");
    }
}
