//! What QEMU and libvirt need to attach a disk, or all disks of a VM.
//!
//! Owns the choice of disks and what is printed of them. Never talks to QEMU. Invariant: a VM has one memory backend,
//! however many disks.

mod attachment;
mod quoting;

pub(crate) use attachment::Attachment;
pub use quoting::{broken, shell};

use super::args::{AttachArgs, AttachForm};
use crate::cli::output::Out;
use crate::cli::{Failure, control_socket, machine, output};
use attachment::{credentials, shared_memory};
use hyper::Method;
use quoting::join;
use serde::Serialize;
use undercroft_api::Status;
use undercroft_api::client;
use undercroft_config::ControlError;
use undercroft_config::{self as config, Overrides, Problems};
use undercroft_units::Size;

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
    let (qemu, qemu_nbd) = (a.qemu(args.memory), a.qemu_nbd(&args.tls_dir));
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
        None => out.write(&everything(a, args))?,
    }
    Ok(())
}

/// All forms, with what to know of each.
fn everything(a: &Guest, args: &AttachArgs) -> String {
    let mut text = String::new();
    if let (Some(qemu), Some(libvirt)) = (a.qemu(args.memory), a.libvirt()) {
        text += "\
            # vhost-user: QEMU arguments (set the size of the memory to that of the guest; prealloc=on keeps its \
            pages\n\
            # from being charged to the daemon's control group; a QEMU that refuses reconnect=1 takes \
            reconnect-ms=1000)\n";
        text += &format!("{}\n\n# vhost-user: libvirt, in the XML of the domain\n{libvirt}", broken(&qemu, "  "));
    }
    if let (Some(qemu), Some(libvirt)) = (a.qemu_nbd(&args.tls_dir), a.libvirt_nbd()) {
        text += &format!("\n# NBD: QEMU arguments\n{}", a.certificates(&args.tls_dir));
        text += &format!("{}\n\n# NBD: libvirt, in the XML of the domain\n{libvirt}", broken(&qemu, "  "));
        text += &format!("\n# NBD: for other programs\n{}\n", a.nbd_uris().join("\n"));
    }
    if a.disks.len() > 1 {
        let any_nbd = a.disks.iter().any(|d| !d.nbd.is_empty());
        for d in &a.disks {
            for how in [d.socket.is_none().then_some("vhost-user"), (d.nbd.is_empty() && any_nbd).then_some("NBD")]
                .iter()
                .flatten()
            {
                text += &format!("\n# {} is not served over {how}\n", d.name);
            }
        }
    }
    text
}

fn remedy(how: &str) -> &'static str {
    if how == "NBD" {
        "add [nbd] with a listener to the configuration, and nbd = true to the disk"
    } else {
        "set vhost_user = true, or use --as qemu-nbd"
    }
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

    /// QEMU's arguments for NBD: the certificates once, if a listener encrypts, and a device for each disk.
    fn qemu_nbd(&self, certificates: &str) -> Option<Vec<String>> {
        let head = if self.encrypts() { credentials(certificates) } else { Vec::new() };
        self.all(head, |disk, _| disk.qemu_nbd())
    }

    fn encrypts(&self) -> bool {
        self.disks.iter().any(Attachment::encrypts)
    }

    /// libvirt's XML for vhost-user.
    fn libvirt(&self) -> Option<String> {
        let head = "<!-- once, in <domain>: the guest's memory must be shared -->\n\
            <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n  \
            <allocation mode='immediate'/>\n</memoryBacking>\n\
            <!-- in <devices> -->\n";
        Some(self.all(vec![head.to_string()], |disk, target| Some(vec![disk.libvirt(target)?]))?.concat())
    }

    /// libvirt's XML for NBD.
    fn libvirt_nbd(&self) -> Option<String> {
        let head = "<!-- in <devices> -->\n".to_string();
        Some(self.all(vec![head], |disk, target| Some(vec![disk.libvirt_nbd(target)?]))?.concat())
    }

    /// What has to be in the directory of certificates, as a comment; nothing if no listener encrypts.
    fn certificates(&self, directory: &str) -> String {
        let mut listeners = self.disks.iter().filter_map(|d| d.nbd.first()).filter(|l| l.tls).peekable();
        if listeners.peek().is_none() {
            return String::new();
        }
        let own = if listeners.any(|l| l.client_certificates) { ", client-cert.pem and client-key.pem" } else { "" };
        format!(
            "# encrypted: {directory} holds ca-cert.pem, the authority of the daemon's certificate{own} (--tls-dir)\n"
        )
    }

    /// URIs of all disks for NBD clients.
    fn nbd_uris(&self) -> Vec<String> {
        self.disks.iter().flat_map(Attachment::nbd_uris).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::attachment::{At, Listener};
    use super::*;
    use undercroft_units::MIB;

    fn plain(at: At) -> Listener {
        Listener { at, tls: false, client_certificates: false }
    }

    fn attachment(socket: &str) -> Attachment {
        Attachment {
            name: "web:root".into(),
            read_only: true,
            socket: Some(socket.into()),
            queues: 4,
            queue_size: 256,
            nbd: vec![plain(At::Unix(socket.into())), plain(At::Tcp { host: "::1".into(), port: 10809 })],
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
        assert_eq!((a.qemu(Size(MIB)), a.qemu_nbd("/pki"), a.libvirt(), a.libvirt_nbd()), (None, None, None, None));
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
        assert_eq!(with(&vm.qemu_nbd("/pki").unwrap(), "driver=nbd"), 2);
        assert_eq!([0, 25, 26, 701].map(target), ["vda", "vdz", "vdaa", "vdzz"]);
    }

    #[test]
    fn where_clients_can_encrypt_they_do_in_every_form() {
        let tls = |at| Listener { at, tls: true, client_certificates: true };
        let tcp = tls(At::Tcp { host: "192.0.2.1".into(), port: 10809 });
        let of = |listener: &Listener| Attachment { nbd: vec![listener.clone()], ..attachment("/s") };
        let vm = Guest { name: "web".into(), disks: vec![of(&tcp), of(&tls(At::Unix("/run/u,c.sock".into())))] };
        let words = vm.qemu_nbd("/p,ki").unwrap();
        let object = "tls-creds-x509,id=uc-tls,endpoint=client,verify-peer=on,dir=/p,,ki";
        assert_eq!(words[..2], ["-object", object], "once, before the disks");
        assert_eq!(words.iter().filter(|w| w.starts_with("tls-creds-x509")).count(), 1);
        assert!(words[3].contains(",export=web:root,tls-creds=uc-tls,reconnect"), "{words:?}");
        assert!(
            words[7].contains("server.path=/run/u,,c.sock") && words[7].contains(",tls-hostname=localhost"),
            "{words:?}"
        );
        assert_eq!(vm.nbd_uris()[0], "nbds://192.0.2.1:10809/web:root");
        assert_eq!(vm.nbd_uris()[1], "nbds+unix:///web:root?socket=/run/u%2Cc.sock");
        assert_eq!(vm.libvirt_nbd().unwrap().matches("tls='yes'").count(), 2);
        assert!(vm.certificates("/pki").contains("client-cert.pem"));
        let offered = Listener { client_certificates: false, ..tcp };
        assert!(!Guest { name: "web".into(), disks: vec![of(&offered)] }.certificates("/pki").contains("client-cert"));
        assert_eq!(Guest { name: "web".into(), disks: vec![attachment("/s")] }.certificates("/pki"), "");
    }
}
