//! What a decoder is given, and where it puts requests.
//!
//! Owns the step from a key to a piece of a disk. Never reads a record. Invariant: every request in a sink fits its
//! blocks.

use crate::access::TraceRequest;
use crate::blocks::Blocks;
use crate::damage::Damage;
use crate::error::TraceError;
use crate::input::Input;
use crate::tally::Tally;
use crate::tenants::Tenants;

/// What a decoder works with.
pub(crate) struct Context<'c, 'i> {
    pub input: &'c mut Input<'i>,
    pub sink: Sink<'c>,
    pub tally: &'c mut Tally,
    pub lenient: bool,
    /// Requests to have in the sink before it returns, about.
    pub max: usize,
}

/// Reads one format.
pub(crate) trait Decode: Send {
    /// Adds requests, at least one if there is any left; none at the end of the trace.
    fn fill(&mut self, cx: &mut Context<'_, '_>) -> Result<(), TraceError>;
}

/// Where decoders put requests.
pub(crate) struct Sink<'c> {
    pub out: &'c mut Vec<TraceRequest>,
    pub tenants: &'c mut Tenants,
    pub blocks: Blocks,
    /// Bytes of a key, if keys are pieces of a disk.
    pub key_bytes: Option<u32>,
}

impl Sink<'_> {
    /// The number of a tenant, of whom there may be `max`.
    #[inline]
    pub fn tenant(&mut self, name: &[u8], max: usize) -> Result<u16, Damage> {
        Ok(self.tenants.number(name, max)?)
    }

    /// Adds a request for bytes.
    #[inline]
    pub fn bytes(&mut self, r: TraceRequest) -> Result<(), Damage> {
        self.blocks.fits(&r)?;
        self.out.push(r);
        Ok(())
    }

    /// Adds a request for keys.
    #[inline]
    pub fn key(&mut self, r: TraceRequest) -> Result<(), Damage> {
        let Some(bytes) = self.key_bytes else {
            if r.keys != 1 {
                self.blocks.fits(&r)?;
            }
            self.out.push(r);
            return Ok(());
        };
        let bytes = u64::from(bytes);
        let address = r.address.checked_mul(bytes).ok_or(Damage::KeyPastEnd(r.address))?;
        self.bytes(TraceRequest { address, bytes: r.bytes.max(bytes * u64::from(r.keys)), keys: 1, ..r })
    }
}
