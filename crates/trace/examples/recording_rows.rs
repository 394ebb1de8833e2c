//! Prints a recording as lines of JSON: what it says about itself, then its rows.
//!
//! `cargo run -p undercroft-trace --example recording_rows FILE.parquet`. For tests, and for machines without a tool
//! that reads Parquet. Exit code 1, with the reason, if it cannot be read.

use serde_json::json;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use undercroft_trace::TraceError;
use undercroft_trace::recording::Recording;

fn print(path: &str, out: &mut impl Write) -> Result<io::Result<()>, TraceError> {
    let mut recording = Recording::open(path)?;
    let about = json!({ "header": recording.header(), "trailer": recording.trailer() });
    let mut written = writeln!(out, "{about}");
    while let (Some(rows), Ok(())) = (recording.next_group()?, &written) {
        for row in rows {
            let line = json!({
                "time_ns": row.time_ns,
                "disk": recording.header().disks[usize::from(row.disk)].name,
                "client": row.client,
                "op": row.op.name(),
                "offset_bytes": row.offset_bytes,
                "length_bytes": row.length_bytes,
                "hit_blocks": row.hit_blocks,
                "ahead_blocks": row.ahead_blocks,
                "joined_blocks": row.joined_blocks,
                "miss_blocks": row.miss_blocks,
                "latency_ns": row.latency_ns,
                "failure": row.failure.map(|f| f.name()),
            });
            written = writeln!(out, "{line}");
        }
    }
    Ok(written.and_then(|()| out.flush()))
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: recording_rows FILE.parquet");
        return ExitCode::from(2);
    };
    match print(&path, &mut BufWriter::new(io::stdout())) {
        Ok(Err(e)) if e.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("cannot write: {e}");
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
