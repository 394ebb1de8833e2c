//! `undercroft why DISK --block OFFSET`: where a block is, and why, in sentences.
//!
//! Owns the words. Never knows more of a block than the daemon tells.

use super::args::WhyArgs;
use super::control::full_name_or_given;
use super::pins::span::DiskSpan;
use crate::cli::output::Out;
use crate::cli::style::{HEADING, paint};
use crate::cli::{Failure, control_socket};
use hyper::Method;
use undercroft_api::BlockStatus;
use undercroft_api::client::{self, block_path};
use undercroft_units::{Size, human_size};

/// Runs it.
///
/// # Errors
/// There is no such disk or no such byte, or no daemon.
pub fn why(args: &WhyArgs, byte: Size, out: &mut Out) -> Result<(), Failure> {
    let socket = control_socket(&args.control.control);
    let name = full_name_or_given(&socket, &args.node)?;
    let block: BlockStatus = client::request_json(&socket, Method::GET, &block_path(&name, byte.0), None)?;
    if args.json {
        return Ok(out.json(&block)?);
    }
    out.line(&paint(HEADING, &format!("the block at {} of disk \"{}\"", Size(block.offset_bytes), block.disk)))?;
    for sentence in told(&block) {
        out.line(&format!("  {sentence}"))?;
    }
    Ok(())
}

fn told(b: &BlockStatus) -> Vec<String> {
    let mut said = vec![place(b)];
    if b.guest_holds {
        said.push("The guest holds it in its own memory, as far as is known.".to_string());
    }
    said.extend(container(b));
    said.extend(asked(b));
    said.extend(unlocked(b));
    said.extend(hint(b));
    said.push(match (b.misses, b.misses_error) {
        (Some(1), None | Some(0)) => "It was missed once.".to_string(),
        (Some(misses), None | Some(0)) => format!("It was missed {misses} times."),
        (Some(misses), Some(error)) => {
            format!("It was missed {} to {misses} times.", misses.saturating_sub(error))
        }
        (None, _) => "It is not among those that the table of most missed blocks has counted.".to_string(),
    });
    said
}

/// Where it is, and when it goes.
fn place(b: &BlockStatus) -> String {
    let held = if b.guest_holds { ", since the guest holds it as well" } else { "" };
    if b.buffered {
        "It is in RAM, in the victim buffer: it was evicted, and goes for good when others follow.".to_string()
    } else if b.cached && b.locked {
        "It is in RAM, and locked: it is not evicted.".to_string()
    } else if b.cached && b.first_to_go {
        format!("It is in RAM, and among the first to go{held}.")
    } else if b.cached && b.on_probation {
        "It is in RAM, as a copy of what the guest is about to evict.".to_string()
    } else if b.cached {
        format!("It is in RAM; {} decides when it goes.", b.policy)
    } else if b.on_its_way {
        "It is not in RAM yet: it is being read, or was read ahead.".to_string()
    } else if b.on_ssd {
        "It is not in RAM, but in the SSD store.".to_string()
    } else {
        "It is not in RAM: a read of it goes to the image.".to_string()
    }
}

fn container(b: &BlockStatus) -> Option<String> {
    b.container.as_ref().map(|name| format!("It is in the part of the disk that container \"{name}\" has."))
}

/// Who wants it locked.
fn asked(b: &BlockStatus) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(pin) = b.pinned_by {
        let span = DiskSpan { start: pin.offset_bytes, end: pin.offset_bytes.saturating_add(pin.length_bytes) };
        let by = if b.pinned_from.as_deref() == Some("file") { "by the configuration" } else { "by hand" };
        said.push(format!("It is pinned {by}, as a part of {span}."));
    }
    if b.named_by_profile {
        said.push("The profile of the disk names it (lock = \"static\").".to_string());
    }
    if b.chosen {
        said.push("It is chosen to be locked, because it missed often (lock = \"online\").".to_string());
    }
    if said.is_empty() && b.locked {
        said.push("Nothing asks for the lock any more: it becomes an ordinary block soon.".to_string());
    }
    said
}

/// Why it is not locked, if it is to be.
fn unlocked(b: &BlockStatus) -> Option<String> {
    let wanted = b.pinned_by.is_some() || b.named_by_profile || b.chosen;
    if b.locked || !wanted {
        return None;
    }
    let (locked, budget) = (human_size(b.locked_bytes), human_size(b.budget_bytes));
    let keeps = format!("`undercroft set {} --lock-held true`", b.disk);
    Some(if b.guest_holds && !b.lock_held && b.cached {
        format!("It is not locked while the guest holds it, and is again after that; {keeps} locks it all the same.")
    } else if b.locked_bytes >= b.budget_bytes {
        format!("It is not locked, because the budget is full: {locked} are locked, of {budget} that may be.")
    } else if b.cached {
        "It is not locked yet: it is when it is asked for next.".to_string()
    } else {
        "It is locked when it is read next.".to_string()
    })
}

/// What is set for the disk that keeps blocks from being kept.
fn hint(b: &BlockStatus) -> Option<String> {
    match b.hint.as_str() {
        "dontneed" => Some("Nothing of the disk is kept (hint = \"dontneed\").".to_string()),
        hint @ ("noreuse" | "sequential") => Some(format!("Blocks of the disk go first (hint = \"{hint}\").")),
        _ if b.keeps_nothing => Some("The disk may keep nothing at present.".to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_api::ranges::RangeBody;

    fn block() -> BlockStatus {
        BlockStatus {
            disk: "web:root".into(),
            policy: "s3-fifo".into(),
            hint: "normal".into(),
            budget_bytes: 1 << 20,
            ..BlockStatus::default()
        }
    }

    fn pinned() -> BlockStatus {
        let pinned_by = Some(RangeBody { offset_bytes: 0, length_bytes: 64 << 20 });
        BlockStatus { pinned_by, pinned_from: Some("hand".into()), ..block() }
    }

    #[test]
    fn each_state_has_its_reason() {
        let cached = || BlockStatus { cached: true, ..pinned() };
        for (b, says) in [
            (block(), "not in RAM: a read of it goes to the image"),
            (BlockStatus { on_ssd: true, ..block() }, "but in the SSD store"),
            (BlockStatus { on_its_way: true, ..block() }, "being read, or was read ahead"),
            (BlockStatus { cached: true, ..block() }, "s3-fifo decides when it goes"),
            (BlockStatus { cached: true, buffered: true, ..block() }, "in the victim buffer"),
            (BlockStatus { cached: true, first_to_go: true, guest_holds: true, ..block() }, "since the guest holds it"),
            (BlockStatus { cached: true, on_probation: true, ..block() }, "about to evict"),
            (BlockStatus { cached: true, locked: true, ..block() }, "Nothing asks for the lock any more"),
            (pinned(), "It is pinned by hand, as a part of 0B..64MiB."),
            (pinned(), "It is locked when it is read next."),
            (BlockStatus { pinned_from: Some("file".into()), ..pinned() }, "pinned by the configuration"),
            (cached(), "it is when it is asked for next"),
            (BlockStatus { guest_holds: true, ..cached() }, "not locked while the guest holds it"),
            (BlockStatus { locked_bytes: 1 << 20, ..cached() }, "the budget is full: 1MiB are locked, of 1MiB"),
            (BlockStatus { locked: true, ..cached() }, "and locked: it is not evicted"),
            (BlockStatus { named_by_profile: true, ..block() }, "lock = \"static\""),
            (BlockStatus { chosen: true, ..block() }, "lock = \"online\""),
            (BlockStatus { hint: "dontneed".into(), keeps_nothing: true, ..block() }, "hint = \"dontneed\""),
            (BlockStatus { keeps_nothing: true, ..block() }, "may keep nothing at present"),
            (BlockStatus { container: Some("shop".into()), ..block() }, "container \"shop\""),
            (BlockStatus { misses: Some(9), misses_error: Some(2), ..block() }, "missed 7 to 9 times"),
            (BlockStatus { misses: Some(9), misses_error: Some(0), ..block() }, "missed 9 times"),
        ] {
            let text = told(&b).join("\n");
            assert!(text.contains(says), "{says:?} is missing in\n{text}");
        }
    }

    /// A reason is given where there is one, and no other beside it.
    #[test]
    fn what_is_locked_is_not_said_not_to_be() {
        let locked = BlockStatus { cached: true, locked: true, guest_holds: true, lock_held: true, ..pinned() };
        assert!(!told(&locked).join("\n").contains("not locked"), "{:?}", told(&locked));
        assert!(
            !told(&block()).join("\n").contains("lock ") && !told(&block()).join("\n").contains("locked"),
            "{:?}",
            told(&block())
        );
        let full = BlockStatus { cached: true, locked_bytes: 1 << 20, guest_holds: true, ..pinned() };
        assert!(!told(&full).join("\n").contains("the budget is full"), "the guest's is the reason");
    }
}
