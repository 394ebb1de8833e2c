//! Several traces as one, in the order of their times.
//!
//! Owns the order and the tenants' new numbers. Invariant: of each trace, requests keep their order; requests of equal
//! times come in the order of the traces.

use crate::access::TraceRequest;
use crate::blocks::{Blocks, DISK_TENANTS_MAX};
use crate::error::TraceError;
use crate::options_error::OptionsError;
use crate::reader::{BATCH, TraceReader};
use crate::tenants::Tenants;

/// The order in which requests of several traces are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The earliest; a time that goes back counts as the latest before it in its trace.
    #[default]
    Time,
    /// One of each in turn.
    Turn,
}

/// Reads several traces as one. Tenants are kept apart: each trace's become tenants of their own, named `trace:tenant`.
pub struct Merge<'a> {
    traces: Vec<Trace<'a>>,
    tenants: Tenants,
    blocks: Blocks,
    order: Order,
    turn: usize,
    /// Whether each trace's times are counted from its first request.
    align: bool,
}

struct Trace<'a> {
    reader: TraceReader<'a>,
    name: String,
    requests: Vec<TraceRequest>,
    at: usize,
    /// New numbers of tenants.
    numbers: Vec<u16>,
    first_ns: Option<u64>,
    latest_ns: u64,
    ended: bool,
}

impl<'a> Merge<'a> {
    /// Merges traces, each with the name that its tenants get.
    ///
    /// # Errors
    /// Some have keys and others ranges of bytes, or blocks of different sizes.
    pub fn new(traces: Vec<(String, TraceReader<'a>)>, order: Order, align: bool) -> Result<Self, TraceError> {
        let mut blocks: Option<Blocks> = None;
        for (_, reader) in &traces {
            let own = Blocks { own_disks: true, ..reader.blocks() };
            let first = *blocks.get_or_insert(own);
            if (first.unit, first.block_bytes, first.whole) != (own.unit, own.block_bytes, own.whole) {
                let what = OptionsError::Unmergeable(reader.name().to_owned());
                return Err(TraceError::Options { what });
            }
        }
        let trace = |(name, reader)| Trace {
            reader,
            name,
            requests: Vec::new(),
            at: 0,
            numbers: Vec::new(),
            first_ns: None,
            latest_ns: 0,
            ended: false,
        };
        let traces = traces.into_iter().map(trace).collect();
        let blocks = blocks.unwrap_or(Blocks::KEYS);
        Ok(Self { traces, tenants: Tenants::default(), blocks, order, turn: 0, align })
    }

    /// How the requests become accesses: the tenant is part of each block's number.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// The tenants that have come so far.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The readers, for what they have counted.
    pub fn readers(&self) -> impl Iterator<Item = &TraceReader<'a>> {
        self.traces.iter().map(|t| &t.reader)
    }

    /// Replaces `out` with the next requests and says how many; 0 at the end.
    ///
    /// # Errors
    /// As [`TraceReader::next_requests`]; or there are too many tenants.
    pub fn next_requests(&mut self, out: &mut Vec<TraceRequest>) -> Result<usize, TraceError> {
        out.clear();
        while out.len() < BATCH {
            let Some(n) = self.next_trace()? else { break };
            let trace = &mut self.traces[n];
            let mut r = trace.requests[trace.at];
            r.time_ns = trace.time(&r, self.align);
            trace.latest_ns = r.time_ns;
            trace.at += 1;
            r.tenant = trace.number(r.tenant, &mut self.tenants)?;
            self.blocks.fits(&r).map_err(|range| {
                let what = OptionsError::MergedKey { name: trace.reader.name().to_owned(), range };
                TraceError::Options { what }
            })?;
            out.push(r);
        }
        Ok(out.len())
    }

    fn next_trace(&mut self) -> Result<Option<usize>, TraceError> {
        for trace in &mut self.traces {
            if trace.at == trace.requests.len() && !trace.ended {
                trace.at = 0;
                trace.ended = trace.reader.next_requests(&mut trace.requests)? == 0;
                if let (None, Some(r)) = (trace.first_ns, trace.requests.first()) {
                    trace.first_ns = Some(r.time_ns);
                }
            }
        }
        let all = self.traces.len();
        let live = |n: &usize| self.traces[*n].at < self.traces[*n].requests.len();
        Ok(match self.order {
            Order::Turn => {
                let next = (0..all).map(|n| (self.turn + n) % all.max(1)).find(live);
                self.turn = next.map_or(0, |n| n + 1);
                next
            }
            Order::Time => (0..all).filter(live).min_by_key(|&n| {
                let trace = &self.traces[n];
                trace.time(&trace.requests[trace.at], self.align)
            }),
        })
    }
}

impl Trace<'_> {
    /// The time by which a request is put in order.
    fn time(&self, r: &TraceRequest, align: bool) -> u64 {
        let base = if align { self.first_ns.unwrap_or(0) } else { 0 };
        r.time_ns.saturating_sub(base).max(self.latest_ns)
    }

    fn number(&mut self, tenant: u16, all: &mut Tenants) -> Result<u16, TraceError> {
        let own = self.reader.tenants();
        while self.numbers.len() <= usize::from(tenant) {
            let name = match own.names().get(self.numbers.len()) {
                Some(tenant) if !tenant.is_empty() => format!("{}:{tenant}", self.name),
                _ => self.name.clone(),
            };
            if all.len() >= DISK_TENANTS_MAX {
                return Err(TraceError::Options { what: OptionsError::MergedTenants });
            }
            self.numbers.push(all.add(&name).map_err(|e| TraceError::Options { what: e.into() })?);
        }
        Ok(self.numbers[usize::from(tenant)])
    }
}
