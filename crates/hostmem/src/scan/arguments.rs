//! What a QEMU command line says: the guest's name, and its disk images.
//!
//! Owns that reading, of the arguments that people and libvirt use. Never opens anything. Invariant: any bytes are read
//! without failing; what is not understood is left out.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Objects within objects in a `-blockdev` argument that are looked into at most.
const DEPTH_MAX: usize = 16;

/// What was understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// `-name`.
    pub name: Option<String>,
    /// Files named by `-drive`, `-blockdev`, `-hda` and the like, as written.
    pub images: Vec<PathBuf>,
}

impl Arguments {
    /// Reads the contents of `/proc/PID/cmdline`.
    pub fn parse(cmdline: &[u8]) -> Arguments {
        let mut said = Arguments::default();
        let mut words = cmdline.split(|b| *b == 0).skip(1);
        while let Some(word) = words.next() {
            let option = match word {
                [b'-', b'-', rest @ ..] | [b'-', rest @ ..] => rest,
                _ => continue,
            };
            match option {
                b"name" => {
                    let Some(value) = words.next() else { break };
                    let pairs = pairs(value);
                    let named =
                        pairs.iter().find(|(k, _)| k == b"guest").or_else(|| pairs.iter().find(|(k, _)| k.is_empty()));
                    said.name = named.map(|(_, v)| String::from_utf8_lossy(v).into_owned()).filter(|n| !n.is_empty());
                }
                b"drive" => {
                    let Some(value) = words.next() else { break };
                    said.files(pairs(value).into_iter().filter(|(k, _)| k == b"file" || k.ends_with(b".filename")));
                }
                b"blockdev" => {
                    let Some(value) = words.next() else { break };
                    if value.first() == Some(&b'{') {
                        if let Ok(json) = serde_json::from_slice(value) {
                            said.json(&json, 0);
                        }
                    } else {
                        let named = |k: &[u8]| k == b"filename" || k.ends_with(b".filename");
                        said.files(pairs(value).into_iter().filter(|(k, _)| named(k)));
                    }
                }
                b"hda" | b"hdb" | b"hdc" | b"hdd" | b"cdrom" | b"pflash" => {
                    let Some(value) = words.next() else { break };
                    said.files([(Vec::new(), value.to_vec())]);
                }
                _ => {}
            }
        }
        said
    }

    fn files(&mut self, found: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        for (_, value) in found {
            let value = value.strip_prefix(b"file:").map_or(value.clone(), <[u8]>::to_vec);
            // NBD servers, JSON descriptions, descriptors passed by libvirt: no files that could be opened by name.
            let other = value.windows(3).any(|w| w == b"://")
                || value.starts_with(b"json:")
                || value.starts_with(b"/dev/fdset/");
            let path = PathBuf::from(OsString::from_vec(value));
            if !other && !path.as_os_str().is_empty() && !self.images.contains(&path) {
                self.images.push(path);
            }
        }
    }

    fn json(&mut self, value: &serde_json::Value, depth: usize) {
        let Some(object) = value.as_object().filter(|_| depth < DEPTH_MAX) else { return };
        for (key, value) in object {
            match value.as_str() {
                Some(text) if key == "filename" => self.files([(Vec::new(), text.as_bytes().to_vec())]),
                _ => self.json(value, depth + 1),
            }
        }
    }
}

/// `KEY=VALUE,VALUE,...` with `,,` for a comma; a value without a key has an empty one.
fn pairs(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut items: Vec<Vec<u8>> = vec![Vec::new()];
    let mut at = 0;
    while at < text.len() {
        match (text[at], text.get(at + 1)) {
            (b',', Some(b',')) => {
                items.last_mut().expect("never empty").push(b',');
                at += 1;
            }
            (b',', _) => items.push(Vec::new()),
            (byte, _) => items.last_mut().expect("never empty").push(byte),
        }
        at += 1;
    }
    let split = |item: Vec<u8>| match item.iter().position(|b| *b == b'=') {
        Some(at) => (item[..at].to_vec(), item[at + 1..].to_vec()),
        None => (Vec::new(), item),
    };
    items.into_iter().map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> (Option<String>, Vec<String>) {
        let said = Arguments::parse(format!("qemu-system-x86_64\0{}\0", words.join("\0")).as_bytes());
        (said.name, said.images.iter().map(|p| p.display().to_string()).collect())
    }

    #[test]
    fn names_as_people_and_libvirt_write_them() {
        assert_eq!(parse(&["-name", "guest=web,debug-threads=on"]).0.as_deref(), Some("web"));
        assert_eq!(parse(&["-name", "web"]).0.as_deref(), Some("web"));
        assert_eq!(parse(&["--name", "a,,b,process=x"]).0.as_deref(), Some("a,b"));
        assert_eq!(parse(&["-name", ""]).0, None);
        assert_eq!(parse(&["-name"]).0, None);
        assert_eq!(parse(&["-m", "-name"]).0, None);
    }

    #[test]
    fn images_in_every_form() {
        let json = r#"{"driver":"qcow2","file":{"driver":"file","filename":"/v/a.qcow2"},"node-name":"n"}"#;
        let (_, images) = parse(&[
            "-drive",
            "file=/v/b,,c.raw,format=raw,if=virtio",
            "-blockdev",
            json,
            "-blockdev",
            "driver=raw,file.driver=file,file.filename=/v/d.raw,node-name=x",
            "-hda",
            "e.img",
            "-drive",
            "file=nbd://host/x",
            "-drive",
            "if=none",
            "-cdrom",
            "/v/d.raw",
            "-blockdev",
            "{broken",
        ]);
        assert_eq!(images, ["/v/b,c.raw", "/v/a.qcow2", "/v/d.raw", "e.img"]);
    }

    #[test]
    fn nothing_is_understood_from_nothing() {
        assert_eq!(Arguments::parse(b""), Arguments::default());
        assert_eq!(Arguments::parse(b"\0\0\0-drive"), Arguments::default());
    }
}
