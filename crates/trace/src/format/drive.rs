//! What formats have in common: lines, records of one length, records that say their length.
//!
//! Owns what happens at the end of a file and at a bad record: an error in a strict reader, a count in a lenient one.
//! Invariant: every call consumes something, adds a request, or has reached the end.

use super::csv_columns::BOM;
use super::sink::{Context, Decode, Sink};
use crate::damage::Damage;
use crate::error::TraceError;

/// A format of lines.
pub(super) trait Line: Send {
    /// One line, without its end; adds nothing for one that is no access.
    fn line(&mut self, line: &[u8], to: &mut Sink<'_>) -> Result<(), Damage>;
}

/// See [`Line`].
pub(super) struct Lines<P>(pub P);

impl<P: Line> Decode for Lines<P> {
    fn fill(&mut self, cx: &mut Context<'_, '_>) -> Result<(), TraceError> {
        while cx.sink.out.len() < cx.max {
            let (line, bytes) = match cx.input.line() {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(()),
                Err(error) => {
                    cx.bad(error)?;
                    continue;
                }
            };
            let mut text = &cx.input.rest()[..line];
            if let [head @ .., b'\r'] = text {
                text = head;
            }
            if text.first() == Some(&BOM[0]) && cx.input.is_at_start() {
                text = text.strip_prefix(BOM).unwrap_or(text);
            }
            let before = cx.sink.out.len();
            let read = self.0.line(text, &mut cx.sink);
            let read = read.map_err(|what| cx.input.damaged(what));
            cx.input.consume(bytes, 1);
            if let Err(error) = read {
                cx.sink.out.truncate(before);
                cx.bad(error)?;
            }
        }
        Ok(())
    }
}

/// A format of records that all have the same length.
pub(super) trait Fixed: Send {
    /// Their length in bytes.
    const BYTES: usize;
    /// One record of that length.
    fn record(&mut self, record: &[u8], to: &mut Sink<'_>) -> Result<(), Damage>;
}

/// See [`Fixed`].
pub(super) struct Records<P>(pub P);

impl<P: Fixed> Decode for Records<P> {
    fn fill(&mut self, cx: &mut Context<'_, '_>) -> Result<(), TraceError> {
        loop {
            let there = loop {
                match cx.input.need(P::BYTES) {
                    Ok(there) => break there,
                    Err(error) => cx.bad(error)?,
                }
            };
            if there < P::BYTES {
                return cx.cut(there, P::BYTES);
            }
            let (mut records, mut failed) = (0, None);
            let max = cx.max.saturating_sub(cx.sink.out.len()).max(1);
            for record in cx.input.rest().chunks_exact(P::BYTES).take(max) {
                match self.0.record(record, &mut cx.sink) {
                    Ok(()) => records += 1,
                    Err(what) => {
                        failed = Some(what);
                        break;
                    }
                }
            }
            cx.input.consume(records * P::BYTES, records as u64);
            if let Some(what) = failed {
                let error = cx.input.damaged(what);
                cx.input.consume(P::BYTES, 1);
                cx.bad(error)?;
            } else if !cx.sink.out.is_empty() {
                // Nothing but records that are passed over is not the end.
                return Ok(());
            }
        }
    }
}

/// A format of records whose beginning says how long they are.
pub(super) trait Varying: Send {
    /// Bytes of the next record that are needed to know its length.
    fn head(&self) -> usize;
    /// The length of the record that begins so.
    fn length(&mut self, head: &[u8]) -> Result<usize, Damage>;
    /// One record of that length.
    fn record(&mut self, record: &[u8], to: &mut Sink<'_>) -> Result<(), Damage>;
    /// How far to go on after a bad record that begins so.
    fn after_bad(&self, rest: &[u8]) -> usize {
        self.head().min(rest.len())
    }
}

/// See [`Varying`].
pub(super) struct Said<P>(pub P);

impl<P: Varying> Decode for Said<P> {
    fn fill(&mut self, cx: &mut Context<'_, '_>) -> Result<(), TraceError> {
        while cx.sink.out.len() < cx.max {
            let head = self.0.head();
            let there = match cx.input.need(head) {
                Ok(there) => there,
                Err(error) => {
                    cx.bad(error)?;
                    continue;
                }
            };
            if there < head {
                return cx.cut(there, head);
            }
            let mut read = self.0.length(&cx.input.rest()[..head]);
            if let Ok(length) = read {
                let there = match cx.input.need(length) {
                    Ok(there) => there,
                    Err(error) => {
                        cx.bad(error)?;
                        continue;
                    }
                };
                if there < length {
                    return cx.cut(there, length);
                }
                read = self.0.record(&cx.input.rest()[..length], &mut cx.sink).map(|()| length);
            }
            match read {
                Ok(length) => cx.input.consume(length, 1),
                Err(what) => {
                    let error = cx.input.damaged(what);
                    let on = self.0.after_bad(cx.input.rest()).max(1);
                    cx.input.consume(on, 1);
                    cx.bad(error)?;
                }
            }
        }
        Ok(())
    }
}

impl Context<'_, '_> {
    /// A record is bad: the end of a strict reader.
    #[cold]
    pub(super) fn bad(&mut self, error: TraceError) -> Result<(), TraceError> {
        if !self.lenient {
            return Err(error);
        }
        self.tally.skip(&error);
        Ok(())
    }

    /// The end of the trace, with `there` bytes of a record of `whole` that are left over.
    #[cold]
    fn cut(&mut self, there: usize, whole: usize) -> Result<(), TraceError> {
        if there == 0 {
            return Ok(());
        }
        let error = self.input.damaged(Damage::Cut { there, whole });
        self.input.consume(there, 1);
        self.bad(error)
    }
}
