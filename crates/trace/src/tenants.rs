//! The tenants of a trace: names, numbered from 0 in the order in which they appear.
//!
//! Owns the numbering. Invariant: numbers are dense and never change.

use std::collections::HashMap;

/// Tenants that have a number in an access.
pub const TENANTS_MAX: usize = 1 << 16;

/// There are more tenants than can be numbered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooManyTenants {
    /// A name would be one too many.
    #[error("\"{name}\" is one tenant more than the {max} that a trace may have")]
    Named {
        /// The name, as it can be shown.
        name: String,
        /// Tenants at most.
        max: usize,
    },
    /// There are as many as there are numbers.
    #[error("there are more than {TENANTS_MAX} tenants")]
    Numbers,
}

/// The names of a trace's tenants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tenants {
    names: Vec<String>,
    numbers: HashMap<Vec<u8>, u16>,
    last: Option<(Vec<u8>, u16)>,
}

impl Tenants {
    /// The names, in the order of their numbers.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether the trace names none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name of a number; empty for one that has none.
    pub fn name(&self, tenant: u16) -> &str {
        self.names.get(usize::from(tenant)).map_or("", |n| n)
    }

    /// The number of a name, new or known; bytes that are no UTF-8 are shown as such.
    ///
    /// # Errors
    /// There are `max` others already.
    #[inline]
    pub fn number(&mut self, name: &[u8], max: usize) -> Result<u16, TooManyTenants> {
        if let Some((last, number)) = &self.last
            && last == name
        {
            return Ok(*number);
        }
        self.look_up(name, max.min(TENANTS_MAX))
    }

    /// One more tenant, even if another has its name; returns its number.
    ///
    /// # Errors
    /// There are [`TENANTS_MAX`] already.
    pub fn add(&mut self, name: &str) -> Result<u16, TooManyTenants> {
        if self.names.len() >= TENANTS_MAX {
            return Err(TooManyTenants::Numbers);
        }
        let number = self.names.len() as u16;
        self.names.push(name.to_owned());
        self.numbers.entry(name.as_bytes().to_vec()).or_insert(number);
        Ok(number)
    }

    fn look_up(&mut self, name: &[u8], max: usize) -> Result<u16, TooManyTenants> {
        let number = match self.numbers.get(name) {
            Some(&number) => number,
            None if self.names.len() >= max => {
                return Err(TooManyTenants::Named { name: name.escape_ascii().to_string(), max });
            }
            None => {
                let number = self.names.len() as u16;
                self.names.push(String::from_utf8_lossy(name).into_owned());
                self.numbers.insert(name.to_vec(), number);
                number
            }
        };
        self.last = Some((name.to_vec(), number));
        Ok(number)
    }
}
