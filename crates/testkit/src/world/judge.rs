//! Whether an answer was right: its result, its data, its time, and what its disk had failed to do.
//!
//! Owns the judgement of answers. Never gives one, and never calls the core. Invariant: a request is judged once, at
//! its answer.

use super::{PATIENCE, Pending, WAITS_MAX, World, aligned, work_of};
use crate::coverage::Seen;
use crate::violation::Violation;
use undercroft_cache::{IoError, IoKind, Op, Request};

impl World {
    /// Whether an operation failed that `req` needs all of, since it started.
    fn is_excused(&self, p: &Pending, e: IoError) -> bool {
        let Pending { req, .. } = p;
        let side = &self.sides[req.disk.0 as usize];
        let (from, to) = aligned(req, side.disk.geometry.align);
        side.disk.failed.iter().any(|f| {
            let kind = match req.op {
                Op::Read => f.kind == IoKind::Read,
                Op::Write { .. } => matches!(f.kind, IoKind::Read | IoKind::Write { .. }),
                Op::WriteZeroes { .. } => {
                    matches!(f.kind, IoKind::Read | IoKind::Write { .. } | IoKind::WriteZeroes { .. })
                }
                Op::Flush => f.kind == IoKind::Flush,
                Op::Discard => f.kind == IoKind::Discard,
                Op::Status => f.kind == IoKind::Status,
            };
            let own = req.op == Op::Flush || (from <= f.offset && f.offset + f.len <= to);
            kind && own && f.at > p.start && f.error == e
        })
    }

    /// Whether a failed answer, or one that did not fail, is right for a port that has been told, or has not, that
    /// writes were lost. Nothing if it has nothing to do with that.
    fn judge_loss(&mut self, p: &Pending, result: Result<(), IoError>) -> Option<Result<(), Violation>> {
        let Pending { req, .. } = p;
        let side = &mut self.sides[req.disk.0 as usize];
        let told = matches!(req.op, Op::Flush | Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. });
        let owed = side.untold.iter().position(|&port| port == req.id.port);
        if req.op == Op::Flush && result.is_err() {
            side.untold.retain(|&port| port != req.id.port);
        }
        match (p.doomed, owed) {
            (true, _) if result.is_ok() => {
                Some(Err(format!("{req:?} succeeded though writes before it were lost").into()))
            }
            (true, _) => Some(Ok(())),
            (false, Some(at)) if told && p.start > side.lost => match result {
                Err(IoError::Lost) => {
                    if at < side.untold.len() && side.untold[at] == req.id.port {
                        side.untold.swap_remove(at);
                    }
                    Some(Ok(()))
                }
                other => {
                    Some(Err(format!("{req:?} was answered {other:?}, and its port not told of lost writes").into()))
                }
            },
            _ => None,
        }
    }

    pub(super) fn judge(&mut self, p: Pending, result: Result<(), IoError>) -> Result<(), Violation> {
        let Pending { req, .. } = p;
        let d = req.disk.0 as usize;
        let side = &mut self.sides[d];
        side.pending -= 1;
        if let Some(must) = p.must {
            return match result {
                Err(e) if e == must => Ok(()),
                other => Err(format!("{req:?} was answered {other:?}, not {must:?}").into()),
            };
        }
        side.work -= work_of(&req);
        let age = side.disk.deliveries - p.deliveries;
        let waited = age.saturating_sub(PATIENCE) / p.work.max(1);
        self.slowest = self.slowest.max(waited);
        // Requests of many blocks alternate, one operation each: later ones may have as many as there are of them.
        let patience = PATIENCE + work_of(&req) / 2 * side.crowd;
        if waited > WAITS_MAX && age > patience {
            return Err(format!("{req:?} was answered after {age} operations, and {} were to be done", p.work).into());
        }
        if p.change != 0 {
            let fua = matches!(req.op, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. });
            side.model.end(p.change, result.is_ok(), fua, self.time);
        }
        if req.op == Op::Read && p.copied.iter().any(|&n| n > 1) {
            return Err(format!("{req:?} was given a byte twice").into());
        }
        if let Some(judged) = self.judge_loss(&p, result) {
            return judged;
        }
        if let Err(e) = result {
            self.see_failure(&req);
            if !self.is_excused(&p, e) {
                return Err(format!("{req:?} failed ({e}) though no operation did that it needs all of").into());
            }
            return Ok(());
        }
        if req.op == Op::Read {
            self.see(
                match p.found {
                    None => Seen::Hit,
                    Some(f) if f.joined > 0 => Seen::Join,
                    Some(f) if f.ahead > 0 => Seen::Ahead,
                    Some(_) => Seen::Miss,
                },
                d,
            );
        }
        let side = &mut self.sides[d];
        match req.op {
            Op::Read if req.len > 0 => {
                if p.copied.iter().any(|&n| n != 1) {
                    return Err(format!("{req:?} was answered without all of its data").into());
                }
                Ok(side.model.check_read(req.offset, &p.data, p.start, self.time)?)
            }
            Op::Write { .. } if p.copied.iter().any(|&n| n != 1) => {
                Err(format!("{req:?} was answered, and its data not fetched exactly once").into())
            }
            Op::Flush => {
                // A question for the allocation sees contents, too.
                let reads = self.requests.values().filter(|r| matches!(r.req.op, Op::Read | Op::Status));
                side.model.flushed(p.start, reads.map(|r| r.start).min().unwrap_or(u64::MAX));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn see_failure(&mut self, req: &Request) {
        let what = match req.op {
            Op::Read => Seen::ReadFailed,
            Op::Write { .. } | Op::WriteZeroes { .. } => Seen::WriteFailed,
            Op::Flush => Seen::FlushFailed,
            Op::Discard | Op::Status => return,
        };
        self.see(what, req.disk.0 as usize);
    }
}
