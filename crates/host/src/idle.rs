//! Priorities for background work: a thread that yields to all others, and the processor time that it has used.
//!
//! Owns nothing. Never raises a priority. Invariant: a call changes one thread alone.

/// Nanoseconds of processor time that the calling thread has used (`CLOCK_THREAD_CPUTIME_ID`).
pub fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// The calling thread's number, for [`ordinary`]. It is another thread's as soon as the thread is gone and joined.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Lets the calling thread have only the processor time that nobody else wants (`SCHED_IDLE`); its niceness stays as it
/// is, and counts once [`ordinary`] has taken that back. Whether it worked.
pub fn only_idle_time() -> bool {
    set_policy(0, libc::SCHED_IDLE)
}

/// Takes back what [`only_idle_time`] did to thread `tid` of this process; its niceness stays. Only root may; whether
/// it worked. To be done before somebody waits for the thread: where others want all the time, it would never end.
pub fn ordinary(tid: i32) -> bool {
    set_policy(tid, libc::SCHED_OTHER)
}

fn set_policy(tid: i32, policy: i32) -> bool {
    // SAFETY: all zeroes is a valid `sched_param`, which has only integers.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: `param` is read only; a number that is no thread is an error. 0 is the calling thread.
    unsafe { libc::sched_setscheduler(tid, policy, &raw const param) == 0 }
}

/// Gives the calling thread the lowest priority: `SCHED_IDLE`, or where that is refused nice 19. Whether either worked.
pub fn lowest_priority() -> bool {
    let idle = only_idle_time();
    // On Linux this is the thread's own, too; it counts where a control group's schedulers ignore the class.
    let nice = rustix::process::setpriority_process(None, 19).is_ok();
    idle || nice
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_work_and_no_sleep() {
        let before = thread_cpu_ns();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let slept = thread_cpu_ns() - before;
        let mut x = 1u64;
        while thread_cpu_ns() - before < 2 * slept + 20_000_000 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(slept < 50_000_000, "sleeping used {slept} ns");
    }

    #[test]
    fn only_the_thread_that_asks_is_lowered() {
        let of = |tid: &str| {
            let text = std::fs::read_to_string(format!("/proc/thread-self/{tid}")).unwrap();
            let fields = text.rsplit_once(") ").unwrap().1.to_owned();
            fields.split(' ').nth(16).unwrap().parse::<i32>().unwrap()
        };
        let here = of("stat");
        let there = std::thread::spawn(move || {
            assert!(lowest_priority());
            of("stat")
        });
        assert_eq!(there.join().unwrap(), 19);
        assert_eq!(of("stat"), here);
    }
}
