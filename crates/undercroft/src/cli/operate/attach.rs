//! What QEMU and libvirt need to attach a disk, or all disks of a VM.
//!
//! Owns their notations and quoting. Never talks to QEMU. Invariants: a path with commas, quotes or angle brackets
//! comes out as one that QEMU, a shell, or an XML parser reads back unchanged; a VM has one memory backend, however
//! many disks.

use super::args::{AttachArgs, AttachForm};
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket, machine, output};
use hyper::Method;
use serde::Serialize;
use std::fmt::Write;
use undercroft_api::client;
use undercroft_api::{DiskStatus, Status};
use undercroft_config::ControlError;
use undercroft_config::{self as config, DiskPlan, NbdListen, NbdListener, Overrides, Problems, ServePlan};
use undercroft_units::{MIB, Size};

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
/// There is no such disk or VM, or not in the form asked for.
pub fn run(args: &AttachArgs, out: &mut Out) -> Result<(), Failure> {
    let name = &args.disk;
    let disks: Vec<Attachment> = match &args.config {
        Some(file) => {
            let resolution = config::load(file, &machine(), &Overrides::default())?;
            let said = Problems { file: Some(file.clone()), problems: resolution.problems };
            if !said.problems.is_empty() {
                output::complain(&said.to_string());
            }
            let plan = resolution.plan;
            match plan.find(name) {
                Some(disk) => vec![Attachment::of_plan(&plan, disk)],
                None => {
                    let of_vm = plan.disks.iter().filter(|d| d.vm.as_ref() == Some(name));
                    let of_vm: Vec<_> = of_vm.map(|d| Attachment::of_plan(&plan, d)).collect();
                    known(of_vm, name, plan.disks.iter().map(|d| (&*d.name, d.vm.as_deref())))?
                }
            }
        }
        None => {
            let socket = control_socket(&args.control.control);
            let status: Status = client::request_json(&socket, Method::GET, "/v1/status", None)?;
            let exact = status.disks.iter().find(|d| d.name == *name);
            let mut short = status.disks.iter().filter(|d| d.name.split_once(':').is_some_and(|(_, n)| n == name));
            match exact.or_else(|| short.next().filter(|_| short.next().is_none())) {
                Some(disk) => vec![Attachment::of_status(&status, disk)],
                None => {
                    let of_vm = status.disks.iter().filter(|d| d.vm.as_ref() == Some(name));
                    let of_vm: Vec<_> = of_vm.map(|d| Attachment::of_status(&status, d)).collect();
                    known(of_vm, name, status.disks.iter().map(|d| (&*d.name, d.vm.as_deref())))?
                }
            }
        }
    };
    let name = if let [disk] = disks.as_slice() { &disk.name } else { name }.clone();
    print(&Guest { name, disks }, args, out)
}

/// The disks of a VM, unless there are none: then there is neither a disk nor a VM of that name.
fn known<'a>(
    of_vm: Vec<Attachment>,
    name: &str,
    all: impl Iterator<Item = (&'a str, Option<&'a str>)> + Clone,
) -> Result<Vec<Attachment>, Failure> {
    if !of_vm.is_empty() {
        return Ok(of_vm);
    }
    let names = all.clone().map(|(disk, _)| disk).chain(all.filter_map(|(_, vm)| vm));
    let mut refusal = ControlError::no_disk(name, names);
    refusal.error = format!("there is no disk or VM {:?}", name.chars().take(100).collect::<String>());
    Err(Failure::Said(refusal.to_string()))
}

/// What is attached to one guest: a disk, or all disks of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Guest {
    /// The disk, or the VM.
    name: String,
    disks: Vec<Attachment>,
}

#[derive(Serialize)]
struct Forms<'a> {
    disk: &'a str,
    disks: Vec<&'a str>,
    qemu: Option<Vec<String>>,
    qemu_nbd: Option<Vec<String>>,
    libvirt: Option<String>,
    libvirt_nbd: Option<String>,
    nbd_uris: Vec<String>,
}

fn print(a: &Guest, args: &AttachArgs, out: &mut Out) -> Result<(), Failure> {
    let (qemu, qemu_nbd) = (a.qemu(args.memory), a.qemu_nbd());
    let (libvirt, libvirt_nbd) = (a.libvirt(), a.libvirt_nbd());
    let want = |what: Option<String>, how: &str| {
        what.ok_or_else(|| Failure::Said(format!("\"{}\" is not served over {how}; {}", a.name, remedy(how))))
    };
    match args.form {
        Some(AttachForm::Qemu) => out.line(&want(qemu.map(|q| join(&q)), "vhost-user")?)?,
        Some(AttachForm::QemuNbd) => out.line(&want(qemu_nbd.map(|q| join(&q)), "NBD")?)?,
        Some(AttachForm::Libvirt) => out.write(&want(libvirt, "vhost-user")?)?,
        Some(AttachForm::LibvirtNbd) => out.write(&want(libvirt_nbd, "NBD")?)?,
        Some(AttachForm::Json) => {
            let disks = a.disks.iter().map(|d| &*d.name).collect();
            out.json(&Forms { disk: &a.name, disks, qemu, qemu_nbd, libvirt, libvirt_nbd, nbd_uris: a.nbd_uris() })?;
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
                out.line("\n# NBD: for other programs")?;
                for uri in a.nbd_uris() {
                    out.line(&uri)?;
                }
            }
            let over = |missing: bool, how: &str, d: &Attachment| {
                missing.then(|| format!("\n# {} is not served over {how}", d.name))
            };
            if a.disks.len() > 1 {
                for d in &a.disks {
                    let said = [
                        over(d.socket.is_none(), "vhost-user", d),
                        over(d.nbd.is_empty() && !a.nbd_uris().is_empty(), "NBD", d),
                    ];
                    said.iter().flatten().try_for_each(|line| out.line(line))?;
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

    /// QEMU's arguments for this disk alone, with its memory, one word each.
    pub fn qemu(&self, memory: Size) -> Option<Vec<String>> {
        Some([shared_memory(memory), self.device()?].concat())
    }

    /// The device over vhost-user.
    fn device(&self) -> Option<Vec<String>> {
        let (socket, id) = (self.socket.as_ref()?, self.id());
        Some(vec![
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

    /// libvirt's XML of the disk over vhost-user, as `target` of the guest.
    fn libvirt(&self, target: &str) -> Option<String> {
        let socket = xml(self.socket.as_ref()?);
        let (queues, queue_size) = (self.queues, self.queue_size);
        Some(format!(
            "<disk type='vhostuser' device='disk' snapshot='no'>\n  \
               <driver name='qemu' type='raw' queues='{queues}' queue_size='{queue_size}'/>\n  \
               <source type='unix' path='{socket}'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
               <target dev='{target}' bus='virtio'/>\n{}</disk>\n",
            self.xml_readonly()
        ))
    }

    /// libvirt's XML of the disk over NBD, as `target` of the guest.
    fn libvirt_nbd(&self, target: &str) -> Option<String> {
        let host = match self.nbd.first()? {
            Listen::Unix(path) => format!("<host transport='unix' socket='{}'/>", xml(path)),
            Listen::Tcp { host, port } => format!("<host name='{}' port='{port}'/>", xml(host)),
        };
        Some(format!(
            "<disk type='network' device='disk'>\n  <driver name='qemu' type='raw' cache='none' io='threads'/>\n  \
               <source protocol='nbd' name='{}'>\n    {host}\n  </source>\n  \
               <target dev='{target}' bus='virtio'/>\n{}</disk>\n",
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

/// The memory of a guest, which the daemon shares.
fn shared_memory(memory: Size) -> Vec<String> {
    vec![
        "-object".into(),
        format!("memory-backend-memfd,id=uc-mem,size={}M,share=on,prealloc=on", memory.0.div_ceil(MIB)),
        "-machine".into(),
        "memory-backend=uc-mem".into(),
    ]
}

/// The name that the guest's disk `n` has in libvirt's XML: vda to vdz, then vdaa.
fn target(n: usize) -> String {
    let letter = |n: usize| char::from(b'a' + (n % 26) as u8);
    match n {
        0..26 => format!("vd{}", letter(n)),
        _ => format!("vd{}{}", letter(n / 26 - 1), letter(n)),
    }
}

impl Guest {
    /// What `each` says of every disk, with its name in the guest, after `head`; `None` if it says nothing of any.
    fn all<T>(&self, head: Vec<T>, each: impl Fn(&Attachment, &str) -> Option<Vec<T>>) -> Option<Vec<T>> {
        let mut words = head;
        let before = words.len();
        for (n, disk) in self.disks.iter().enumerate() {
            words.extend(each(disk, &target(n)).into_iter().flatten());
        }
        (words.len() > before).then_some(words)
    }

    /// QEMU's arguments for vhost-user: one memory, and a device for each disk.
    fn qemu(&self, memory: Size) -> Option<Vec<String>> {
        self.all(shared_memory(memory), |disk, _| disk.device())
    }

    /// QEMU's arguments for NBD.
    fn qemu_nbd(&self) -> Option<Vec<String>> {
        self.all(Vec::new(), |disk, _| disk.qemu_nbd())
    }

    /// libvirt's XML for vhost-user.
    fn libvirt(&self) -> Option<String> {
        let head = "<!-- once, in <domain>: the guest's memory must be shared -->\n\
             <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n  <allocation mode='immediate'/>\n</memoryBacking>\n\
             <!-- in <devices> -->\n";
        Some(self.all(vec![head.to_string()], |disk, target| Some(vec![disk.libvirt(target)?]))?.concat())
    }

    /// libvirt's XML for NBD.
    fn libvirt_nbd(&self) -> Option<String> {
        let head = "<!-- in <devices> -->\n".to_string();
        Some(self.all(vec![head], |disk, target| Some(vec![disk.libvirt_nbd(target)?]))?.concat())
    }

    /// URIs of all disks for NBD clients.
    fn nbd_uris(&self) -> Vec<String> {
        self.disks.iter().flat_map(Attachment::nbd_uris).collect()
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
        assert!(a.libvirt("vda").unwrap().contains("path='/tmp/&lt;&amp;&apos;&quot;.sock'"));
        assert!(a.libvirt("vda").unwrap().contains("<readonly/>"));
        let uris = a.nbd_uris();
        assert_eq!(uris[0], "nbd+unix:///web:root?socket=/tmp/%3C%26%27%22.sock");
        assert_eq!(uris[1], "nbd://[::1]:10809/web:root");
    }

    #[test]
    fn without_a_way_there_is_none() {
        let a = Attachment { socket: None, nbd: vec![], ..attachment("/s") };
        assert_eq!((a.qemu(Size(MIB)), a.qemu_nbd()), (None, None));
        let a = Guest { name: "web".into(), disks: vec![a.clone(), a] };
        assert_eq!((a.qemu(Size(MIB)), a.qemu_nbd(), a.libvirt(), a.libvirt_nbd()), (None, None, None, None));
    }

    #[test]
    fn a_vm_has_one_memory_and_disks_of_different_names() {
        let disks = ["web:root", "web:data"].map(|name| Attachment { name: name.into(), ..attachment("/s") });
        let vm = Guest { name: "web".into(), disks: disks.to_vec() };
        let words = vm.qemu(Size(MIB)).unwrap();
        let with = |words: &[String], start: &str| words.iter().filter(|w| w.starts_with(start)).count();
        assert_eq!([with(&words, "memory-backend"), with(&words, "vhost-user-blk-pci,chardev=uc-web-")], [2, 2]);
        let xml = vm.libvirt().unwrap();
        assert_eq!(xml.matches("<memoryBacking>").count(), 1);
        for target in ["<target dev='vda'", "<target dev='vdb'"] {
            assert_eq!([&xml, &vm.libvirt_nbd().unwrap()].map(|x| x.matches(target).count()), [1, 1], "{target}");
        }
        assert_eq!(with(&vm.qemu_nbd().unwrap(), "driver=nbd"), 2);
        assert_eq!([0, 25, 26, 701].map(target), ["vda", "vdz", "vdaa", "vdzz"]);
    }
}
