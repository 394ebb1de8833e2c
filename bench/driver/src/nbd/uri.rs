//! NBD URIs, as far as the driver needs them: `nbd://host[:port]/export` and `nbd+unix:///export?socket=PATH`.
//!
//! Owns nothing. Never connects. Invariant: what it does not understand it refuses.

use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::str::FromStr;

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `host:port`.
    Tcp(String),
    /// A unix socket.
    Unix(PathBuf),
}

/// A parsed URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Where to connect.
    pub place: Place,
    /// The export's name; empty for the default export.
    pub export: String,
}

/// Turns `%2F` and its like into bytes.
fn unescaped(text: &str) -> Result<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let hex = tail.get(..2).and_then(|h| std::str::from_utf8(h).ok()).context("a % without two digits")?;
            out.push(u8::from_str_radix(hex, 16).context("a % without two hexadecimal digits")?);
            rest = &tail[2..];
        } else {
            out.push(*first);
        }
    }
    Ok(String::from_utf8(out)?)
}

impl FromStr for Uri {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Uri> {
        let (scheme, rest) = text.split_once("://").context("an NBD URI starts with nbd:// or nbd+unix://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = unescaped(export)?;
        match scheme {
            "nbd" => {
                ensure!(!host.is_empty(), "nbd:// needs a host");
                let has_port = host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok());
                let place = if has_port { host.to_owned() } else { format!("{host}:10809") };
                Ok(Uri { place: Place::Tcp(place), export })
            }
            "nbd+unix" => {
                let socket = query.split('&').find_map(|p| p.strip_prefix("socket="));
                let socket = unescaped(socket.context("nbd+unix:// needs ?socket=PATH")?)?;
                Ok(Uri { place: Place::Unix(socket.into()), export })
            }
            _ => bail!("{scheme}:// is not served; nbd:// and nbd+unix:// are"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_say_where_and_what() {
        let uri: Uri = "nbd+unix:///a%20b?socket=/tmp/x.sock".parse().unwrap();
        assert_eq!(uri, Uri { place: Place::Unix("/tmp/x.sock".into()), export: "a b".into() });
        let uri: Uri = "nbd://localhost/d".parse().unwrap();
        assert_eq!(uri, Uri { place: Place::Tcp("localhost:10809".into()), export: "d".into() });
        let uri: Uri = "nbd://127.0.0.1:99".parse().unwrap();
        assert_eq!(uri, Uri { place: Place::Tcp("127.0.0.1:99".into()), export: String::new() });
        for bad in ["x", "nbds://h/e", "nbd+unix:///e", "nbd:///e", "nbd://h/%1", "nbd://h/%zz"] {
            assert!(bad.parse::<Uri>().is_err(), "{bad}");
        }
    }
}
