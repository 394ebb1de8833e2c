//! What QEMU and libvirt need to attach a disk.
//!
//! Owns their notations and quoting. Never talks to QEMU. Invariant: a path with commas, quotes or angle brackets comes
//! out as one that QEMU, a shell, or an XML parser reads back unchanged.

use super::args::{AttachArgs, AttachForm};
use super::output::Out;
use super::{Failure, control_socket, machine, output};
use crate::config::{self, DiskPlan, NbdListen, NbdListener, Overrides, Problems, ServePlan};
use crate::control::client;
use crate::control::{ControlError, DiskStatus, Status};
use crate::units::{MIB, Size};
use hyper::Method;
use serde::Serialize;
use std::fmt::Write;

/// How a disk can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    name: String,
    read_only: bool,
    socket: Option<String>,
    queues: u16,
    queue_size: u16,
    nbd: Vec<Listen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Listen {
    Unix(String),
    Tcp { host: String, port: u16 },
}

/// Runs `undercroft attach-args`.
///
/// # Errors
/// There is no such disk, or not in the form asked for.
pub fn run(args: &AttachArgs, out: &mut Out) -> Result<(), Failure> {
    let attachment = match &args.config {
        Some(file) => {
            let resolution = config::load(file, &machine(), &Overrides::default())?;
            let said = Problems { file: Some(file.clone()), problems: resolution.problems };
            if !said.problems.is_empty() {
                output::complain(&said.to_string());
            }
            let plan = resolution.plan;
            let disk = plan.find(&args.disk).ok_or_else(|| missing(&args.disk, plan.disks.iter().map(|d| &*d.name)))?;
            Attachment::of_plan(&plan, disk)
        }
        None => {
            let socket = control_socket(&args.control.control);
            let status: Status = client::request_json(&socket, Method::GET, "/v1/status", None)?;
            let exact = status.disks.iter().find(|d| d.name == args.disk);
            let mut short = status.disks.iter().filter(|d| d.name.split_once(':').is_some_and(|(_, n)| n == args.disk));
            let disk = exact.or_else(|| short.next().filter(|_| short.next().is_none()));
            let disk = disk.ok_or_else(|| missing(&args.disk, status.disks.iter().map(|d| &*d.name)))?;
            Attachment::of_status(&status, disk)
        }
    };
    print(&attachment, args, out)
}

fn missing<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Failure {
    Failure::Said(ControlError::no_disk(name, known).to_string())
}

#[derive(Serialize)]
struct Forms<'a> {
    disk: &'a str,
    qemu: Option<Vec<String>>,
    qemu_nbd: Option<Vec<String>>,
    libvirt: Option<String>,
    libvirt_nbd: Option<String>,
    nbd_uris: Vec<String>,
}

fn print(a: &Attachment, args: &AttachArgs, out: &mut Out) -> Result<(), Failure> {
    let (qemu, qemu_nbd) = (a.qemu(args.memory), a.qemu_nbd());
    let (libvirt, libvirt_nbd) = (a.libvirt(), a.libvirt_nbd());
    let want = |what: Option<String>, how: &str| {
        what.ok_or_else(|| Failure::Said(format!("disk \"{}\" is not served over {how}; {}", a.name, remedy(how))))
    };
    match args.form {
        Some(AttachForm::Qemu) => out.line(&want(qemu.map(|q| join(&q)), "vhost-user")?)?,
        Some(AttachForm::QemuNbd) => out.line(&want(qemu_nbd.map(|q| join(&q)), "NBD")?)?,
        Some(AttachForm::Libvirt) => out.write(&want(libvirt, "vhost-user")?)?,
        Some(AttachForm::LibvirtNbd) => out.write(&want(libvirt_nbd, "NBD")?)?,
        Some(AttachForm::Json) => {
            out.json(&Forms { disk: &a.name, qemu, qemu_nbd, libvirt, libvirt_nbd, nbd_uris: a.nbd_uris() })?;
        }
        None => {
            if let (Some(qemu), Some(libvirt)) = (qemu, libvirt) {
                out.line("# vhost-user: QEMU arguments (set the size of the memory to that of the guest; prealloc=on keeps its pages\n# from being charged to the daemon's control group)")?;
                out.line(&broken(&qemu, "  "))?;
                out.line("\n# vhost-user: libvirt, in the XML of the domain")?;
                out.write(&libvirt)?;
            }
            if let (Some(qemu), Some(libvirt)) = (qemu_nbd, libvirt_nbd) {
                out.line("\n# NBD: QEMU arguments")?;
                out.line(&broken(&qemu, "  "))?;
                out.line("\n# NBD: libvirt, in the XML of the domain")?;
                out.write(&libvirt)?;
                for uri in a.nbd_uris() {
                    out.line(&format!("\n# NBD: for other programs\n{uri}"))?;
                }
            }
        }
    }
    Ok(())
}

fn remedy(how: &str) -> &'static str {
    if how == "NBD" {
        "add [nbd] with a listener to the configuration, and nbd = true to the disk"
    } else {
        "set vhost_user = true, or use --as qemu-nbd"
    }
}

impl Attachment {
    /// Of a disk of a plan.
    pub fn of_plan(plan: &ServePlan, disk: &DiskPlan) -> Self {
        let listen = |l: &NbdListener| match &l.at {
            NbdListen::Unix(path) => Listen::Unix(path.display().to_string()),
            NbdListen::Tcp(addr) => Listen::Tcp { host: addr.ip().to_string(), port: addr.port() },
        };
        Attachment {
            name: disk.name.clone(),
            read_only: disk.image.read_only,
            socket: disk.socket.as_ref().map(|s| s.display().to_string()),
            queues: disk.queues,
            queue_size: disk.queue_size,
            nbd: if disk.nbd {
                plan.nbd.iter().filter(|l| l.has(&disk.name)).map(listen).collect()
            } else {
                Vec::new()
            },
        }
    }

    /// Of a disk of a running daemon.
    pub fn of_status(status: &Status, disk: &DiskStatus) -> Self {
        let listen = |text: &String| {
            if let Some(path) = text.strip_prefix("unix:") {
                return Some(Listen::Unix(path.to_string()));
            }
            let addr: std::net::SocketAddr = text.strip_prefix("tcp:").unwrap_or(text).parse().ok()?;
            Some(Listen::Tcp { host: addr.ip().to_string(), port: addr.port() })
        };
        Attachment {
            name: disk.name.clone(),
            read_only: disk.read_only,
            socket: disk.socket.clone(),
            queues: disk.queues,
            queue_size: disk.queue_size,
            nbd: if disk.nbd { status.nbd.iter().filter_map(listen).collect() } else { Vec::new() },
        }
    }

    /// An id that QEMU takes: letters, digits, `-`, `.`, `_`, beginning with a letter.
    fn id(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_') { c } else { '-' };
        format!("uc-{}", self.name.chars().map(plain).collect::<String>())
    }

    /// QEMU's arguments for vhost-user, one word each.
    pub fn qemu(&self, memory: Size) -> Option<Vec<String>> {
        let (socket, id) = (self.socket.as_ref()?, self.id());
        Some(vec![
            "-object".into(),
            format!("memory-backend-memfd,id=uc-mem,size={}M,share=on,prealloc=on", memory.0.div_ceil(MIB)),
            "-machine".into(),
            "memory-backend=uc-mem".into(),
            "-chardev".into(),
            format!("socket,id={id},path={},reconnect=1", comma(socket)),
            "-device".into(),
            format!("vhost-user-blk-pci,chardev={id},num-queues={},queue-size={}", self.queues, self.queue_size),
        ])
    }

    /// QEMU's arguments for NBD, one word each.
    pub fn qemu_nbd(&self) -> Option<Vec<String>> {
        let id = self.id();
        let server = match self.nbd.first()? {
            Listen::Unix(path) => format!("server.type=unix,server.path={}", comma(path)),
            Listen::Tcp { host, port } => format!("server.type=inet,server.host={host},server.port={port}"),
        };
        let read_only = if self.read_only { ",read-only=on" } else { "" };
        Some(vec![
            "-blockdev".into(),
            format!("driver=nbd,node-name={id},{server},export={},reconnect-delay=60{read_only}", comma(&self.name)),
            "-device".into(),
            format!("virtio-blk-pci,drive={id}"),
        ])
    }

    /// libvirt's XML for vhost-user.
    pub fn libvirt(&self) -> Option<String> {
        let socket = xml(self.socket.as_ref()?);
        let (queues, queue_size) = (self.queues, self.queue_size);
        Some(format!(
            "<!-- once, in <domain>: the guest's memory must be shared -->\n\
             <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n  <allocation mode='immediate'/>\n</memoryBacking>\n\
             <!-- in <devices> -->\n\
             <disk type='vhostuser' device='disk' snapshot='no'>\n  \
               <driver name='qemu' type='raw' queues='{queues}' queue_size='{queue_size}'/>\n  \
               <source type='unix' path='{socket}'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
               <target dev='vda' bus='virtio'/>\n{}</disk>\n",
            self.xml_readonly()
        ))
    }

    /// libvirt's XML for NBD.
    pub fn libvirt_nbd(&self) -> Option<String> {
        let host = match self.nbd.first()? {
            Listen::Unix(path) => format!("<host transport='unix' socket='{}'/>", xml(path)),
            Listen::Tcp { host, port } => format!("<host name='{}' port='{port}'/>", xml(host)),
        };
        Some(format!(
            "<!-- in <devices> -->\n\
             <disk type='network' device='disk'>\n  <driver name='qemu' type='raw' cache='none' io='threads'/>\n  \
               <source protocol='nbd' name='{}'>\n    {host}\n  </source>\n  \
               <target dev='vda' bus='virtio'/>\n{}</disk>\n",
            xml(&self.name),
            self.xml_readonly()
        ))
    }

    fn xml_readonly(&self) -> &'static str {
        if self.read_only { "  <readonly/>\n" } else { "" }
    }

    /// URIs of the disk for NBD clients.
    pub fn nbd_uris(&self) -> Vec<String> {
        let name = percent(&self.name);
        let uri = |listen: &Listen| match listen {
            Listen::Unix(path) => format!("nbd+unix:///{name}?socket={}", percent(path)),
            Listen::Tcp { host, port } if host.contains(':') => format!("nbd://[{host}]:{port}/{name}"),
            Listen::Tcp { host, port } => format!("nbd://{host}:{port}/{name}"),
        };
        self.nbd.iter().map(uri).collect()
    }
}

/// Doubles commas, as QEMU's option parser wants them.
fn comma(text: &str) -> String {
    text.replace(',', ",,")
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;").replace('"', "&quot;")
}

fn percent(text: &str) -> String {
    let mut out = String::new();
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~' | b'/' | b':') {
            out.push(b as char);
        } else {
            let _ = write!(out, "%{b:02X}");
        }
    }
    out
}

/// Quotes a word for a POSIX shell, if it needs it.
pub fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Words on one line, quoted.
fn join(words: &[String]) -> String {
    words.iter().map(|w| shell(w)).collect::<Vec<_>>().join(" ")
}

/// Options on lines of their own, each with its value, joined by backslashes.
pub fn broken(words: &[String], indent: &str) -> String {
    let lines: Vec<String> = words.chunks(2).map(join).collect();
    format!("{indent}{}", lines.join(&format!(" \\\n{indent}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(socket: &str) -> Attachment {
        Attachment {
            name: "web:root".into(),
            read_only: true,
            socket: Some(socket.into()),
            queues: 4,
            queue_size: 256,
            nbd: vec![Listen::Unix(socket.into()), Listen::Tcp { host: "::1".into(), port: 10809 }],
        }
    }

    #[test]
    fn qemu_words_survive_commas_and_shells() {
        let a = attachment("/tmp/it's, a disk.sock");
        let words = a.qemu(Size(3 * MIB + 1)).unwrap();
        assert!(words.contains(&"memory-backend-memfd,id=uc-mem,size=4M,share=on,prealloc=on".to_string()));
        assert!(words.contains(&"socket,id=uc-web-root,path=/tmp/it's,, a disk.sock,reconnect=1".to_string()));
        let line = join(&words);
        let echoed = std::process::Command::new("sh").arg("-c").arg(format!("printf '%s\\n' {line}")).output().unwrap();
        assert_eq!(String::from_utf8(echoed.stdout).unwrap().lines().collect::<Vec<_>>(), words);
        let echoed = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("printf '%s\\n' {}", broken(&words, "    ")))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(echoed.stdout).unwrap().lines().collect::<Vec<_>>(), words);
    }

    #[test]
    fn xml_and_uris_are_escaped() {
        let a = attachment("/tmp/<&'\".sock");
        assert!(a.libvirt().unwrap().contains("path='/tmp/&lt;&amp;&apos;&quot;.sock'"));
        assert!(a.libvirt().unwrap().contains("<readonly/>"));
        let uris = a.nbd_uris();
        assert_eq!(uris[0], "nbd+unix:///web:root?socket=/tmp/%3C%26%27%22.sock");
        assert_eq!(uris[1], "nbd://[::1]:10809/web:root");
    }

    #[test]
    fn without_a_way_there_is_none() {
        let a = Attachment { socket: None, nbd: vec![], ..attachment("/s") };
        assert_eq!((a.qemu(Size(MIB)), a.qemu_nbd(), a.libvirt(), a.libvirt_nbd()), (None, None, None, None));
    }
}
