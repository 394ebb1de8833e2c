//! Everything about one disk, a line for each thing.
//!
//! Owns the lines. Never computes what the daemon does not know.

use super::{p50_p99_all, percent, state, us};
use undercroft_api::DiskStatus;
use undercroft_units::human_size;

/// A name and what is said of it.
type Row = (&'static str, String);

/// Everything about one disk.
pub(super) fn detail(d: &DiskStatus) -> String {
    let rows = [identity(d), memory(d), locks(d), exclusive(d), counters(d), times(d)].concat();
    rows.iter().map(|(name, text)| format!("{name:<18} {text}\n")).collect()
}

/// What it is, and who uses it.
fn identity(d: &DiskStatus) -> Vec<Row> {
    let mut rows: Vec<Row> = vec![
        ("disk", d.name.clone()),
        ("state", format!("{}{}", state(d), d.reason.as_ref().map_or(String::new(), |r| format!(": {r}")))),
        ("image", format!("{}{}", d.image, if d.read_only { " (read-only)" } else { "" })),
        ("back end", format!("{}, {}", d.backend, human_size(d.size_bytes))),
        ("vhost-user socket", d.socket.clone().unwrap_or_else(|| "none".into())),
        ("NBD export", if d.nbd { d.name.clone() } else { "no".into() }),
    ];
    rows.extend(d.file.iter().map(|f| ("file", f.clone())));
    rows.extend(d.device.iter().map(|d| ("block device", d.clone())));
    rows.extend(d.frontends.iter().map(|f| ("client", f.peer.clone())));
    rows
}

/// What is cached, and what of it is held in common with others.
fn memory(d: &DiskStatus) -> Vec<Row> {
    let share = human_size(d.cache.share_bytes);
    let cached = format!(
        "{} of {} ({}), {}",
        human_size(d.cache.cached_bytes),
        human_size(d.cache.capacity_bytes),
        // Of a cache for several disks the share is only its own part.
        if d.cache.pool.is_empty() { format!("{share} with metadata") } else { format!("{share} of it by its share") },
        d.cache.policy
    );
    let s = &d.sharing;
    let with = match &s.trust {
        None => "nothing".to_string(),
        Some(trust) => format!(
            "{} in common, {} zeroes; charged for {}; trust group {trust}{}",
            human_size(s.shared_bytes),
            human_size(s.zero_bytes),
            human_size(s.charged_bytes),
            if s.base { ", and all disks on its base" } else { "" }
        ),
    };
    let mut rows = vec![("cached", cached)];
    if !d.cache.pool.is_empty() {
        rows.push(("  cache shared by", d.cache.pool.join(", ")));
    }
    rows.push(("held in common", with));
    if d.counters.shared_hit_blocks > 0 {
        rows.push(("hits at others", format!("{} blocks of the base", d.counters.shared_hit_blocks)));
    }
    rows
}

/// What is never evicted.
fn locks(d: &DiskStatus) -> Vec<Row> {
    let l = &d.locks;
    let budget = human_size(l.budget_bytes);
    // What may be locked is of all disks that have one cache.
    let all = if d.cache.pool.is_empty() {
        String::new()
    } else {
        format!(" (all disks of this cache: {})", human_size(l.shared_locked_bytes))
    };
    let locked = human_size(l.locked_bytes);
    let settling = if l.settling { "; settling" } else { "" };
    let text = format!("{locked} of {budget}{all}, {} pinned; lock {}{settling}", human_size(l.pinned_bytes), l.mode);
    let mut rows = vec![("locked", text)];
    if let Some(o) = l.online {
        let text = format!(
            "{} blocks chosen now, {} in all, {} given up; {} rests in {} epochs",
            o.chosen_blocks, o.locks, o.unlocks, o.rests, o.epochs
        );
        rows.push(("  online rule", text));
    }
    if l.victim_buffer.max_blocks > 0 {
        let v = l.victim_buffer;
        rows.push(("  victim buffer", format!("{} of {} blocks, {} hits", v.blocks, v.max_blocks, v.hits)));
    }
    rows.extend(l.problem.iter().map(|why| ("  not pinned", why.clone())));
    rows
}

/// What is known of the guest's own memory.
fn exclusive(d: &DiskStatus) -> Vec<Row> {
    let e = &d.exclusive;
    let mut rows =
        vec![("exclusive", format!("{}{}", e.state, e.reason.as_ref().map_or(String::new(), |r| format!(": {r}"))))];
    if e.guest_pages == 0 {
        return rows;
    }
    let pages = |n: u64| human_size(n.saturating_mul(4096));
    let mut guest =
        format!("{} of {} known; table {}", pages(e.guest_pages_held), pages(e.guest_pages), human_size(e.table_bytes));
    if e.table_disks > 1 {
        let all = pages(e.guest_pages_held_by_all);
        guest.push_str(&format!(", its part of the guest's, which serves {} disks ({all} known)", e.table_disks));
    }
    if e.block_offset > 0 {
        let at = e.block_offset;
        rows.push(("  offset", format!("blocks begin as the guest's pages do, {at} bytes after multiples of 4096")));
    }
    rows.extend([
        (
            "  kept",
            format!(
                "{} not in the guest, {} about to leave it, {} in both",
                pages(e.hot_blocks),
                pages(e.probation_blocks),
                pages(e.cold_blocks)
            ),
        ),
        ("  guest", guest),
        (
            "  evictions",
            format!(
                "{} ({} cached already); {} of {} captured at reuse ({} zeroed)",
                e.evictions, e.evictions_cached, e.captures, e.captures_tried, e.captures_zeroed
            ),
        ),
        (
            "  early copies",
            format!(
                "{} of {} good, {} too early; at age {} (read), {} (written)",
                e.early, e.early_tried, e.early_lapsed, e.age_read, e.age_write
            ),
        ),
        ("  after restarts", format!("{} of {} copies good", e.restart_copied, e.restart_tried)),
    ]);
    rows
}

/// What was asked for, and what came of it.
fn counters(d: &DiskStatus) -> Vec<Row> {
    let c = &d.counters;
    vec![
        (
            "hits",
            format!(
                "{} ({} hit, {} missed, {} joined)",
                percent(d.cache.hit_ratio),
                c.hit_blocks,
                c.miss_blocks,
                c.joined_blocks
            ),
        ),
        ("read ahead", format!("{} blocks used, {} wasted", c.readahead_hit_blocks, c.readahead_wasted_blocks)),
        ("evicted", format!("{} blocks; {} bypassed", c.evicted_blocks, c.bypassed_blocks)),
        ("reads", format!("{} ({})", c.reads, human_size(c.read_bytes))),
        ("writes", format!("{} ({})", c.writes, human_size(c.write_bytes))),
        ("flushes", c.flushes.to_string()),
        ("discards", format!("{}; {} write-zeroes", c.discards, c.write_zeroes)),
        ("errors", format!("{} of requests, {} of the image", c.errors, c.backend_errors)),
        ("image reads", format!("{} ({})", c.backend_reads, human_size(c.backend_read_bytes))),
        ("image writes", format!("{} ({})", c.backend_writes, human_size(c.backend_write_bytes))),
        (
            "under way",
            format!("{} requests, {} operations, {} stalled", d.inflight_requests, d.inflight_ops, d.stalled_ops),
        ),
    ]
}

/// How long it took.
fn times(d: &DiskStatus) -> Vec<Row> {
    let poll = if d.poll_us == 0.0 { "off".to_string() } else { format!("up to {}", us(d.poll_us)) };
    vec![
        ("read hit took", p50_p99_all(&d.latency.read_hit)),
        ("read miss took", p50_p99_all(&d.latency.read_miss)),
        ("write took", p50_p99_all(&d.latency.write)),
        ("polling", format!("{poll}, worker {}", d.worker)),
    ]
}
