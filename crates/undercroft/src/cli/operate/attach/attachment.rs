//! How one disk can be reached, in the notation of QEMU, libvirt and URIs.
//!
//! Owns what is known of a disk and of the listeners that export it. Never talks to QEMU. Invariant: where clients can
//! encrypt, what is printed encrypts.

use super::quoting::{comma, percent, xml};
use undercroft_api::{DiskStatus, NbdListenerStatus, Status};
use undercroft_config::tls::TlsMode;
use undercroft_config::{DiskPlan, NbdListen, NbdListener, ServePlan};
use undercroft_units::{MIB, Size};

/// The id of the certificates in QEMU's arguments.
const CREDENTIALS: &str = "uc-tls";
/// The name that QEMU looks for in the certificate of a server on a unix socket, which has no host name.
const UNIX_HOST: &str = "localhost";

/// How a disk can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Its full name.
    pub name: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Its vhost-user socket.
    pub socket: Option<String>,
    /// Queues of its device.
    pub queues: u16,
    /// Requests in each.
    pub queue_size: u16,
    /// The listeners that export it.
    pub nbd: Vec<Listener>,
}

/// A listener for NBD clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where.
    pub at: At,
    /// Whether clients encrypt: where they may, they do.
    pub tls: bool,
    /// Whether those have to show a certificate.
    pub client_certificates: bool,
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// A unix socket.
    Unix(String),
    /// A TCP address.
    Tcp {
        /// Without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

impl Listener {
    fn of_plan(listener: &NbdListener) -> Self {
        Listener {
            at: match &listener.at {
                NbdListen::Unix(path) => At::Unix(path.display().to_string()),
                NbdListen::Tcp(addr) => At::Tcp { host: addr.ip().to_string(), port: addr.port() },
            },
            tls: listener.tls != TlsMode::Off,
            client_certificates: listener.files.as_ref().is_some_and(|f| f.client_ca.is_some()),
        }
    }

    fn of_status(listener: &NbdListenerStatus) -> Option<Self> {
        let at = match listener.address.strip_prefix("unix:") {
            Some(path) => At::Unix(path.to_string()),
            None => {
                let text = listener.address.strip_prefix("tcp:").unwrap_or(&listener.address);
                let addr: std::net::SocketAddr = text.parse().ok()?;
                At::Tcp { host: addr.ip().to_string(), port: addr.port() }
            }
        };
        let tls = listener.tls != "off";
        Some(Listener { at, tls, client_certificates: tls && listener.client_certificates })
    }
}

impl Attachment {
    /// Of a disk of a plan.
    pub fn of_plan(plan: &ServePlan, disk: &DiskPlan) -> Self {
        let exporting = plan.nbd.iter().filter(|l| disk.nbd && l.has(&disk.name));
        Attachment {
            name: disk.name.clone(),
            read_only: disk.image.read_only,
            socket: disk.socket.as_ref().map(|s| s.display().to_string()),
            queues: disk.queues,
            queue_size: disk.queue_size,
            nbd: exporting.map(Listener::of_plan).collect(),
        }
    }

    /// Of a disk of a running daemon.
    pub fn of_status(status: &Status, disk: &DiskStatus) -> Self {
        let exporting = status.nbd_listeners.iter().filter(|l| l.disks.contains(&disk.name));
        Attachment {
            name: disk.name.clone(),
            read_only: disk.read_only,
            socket: disk.socket.clone(),
            queues: disk.queues,
            queue_size: disk.queue_size,
            nbd: exporting.filter_map(Listener::of_status).collect(),
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
    pub fn device(&self) -> Option<Vec<String>> {
        let (socket, id) = (self.socket.as_ref()?, self.id());
        Some(vec![
            "-chardev".into(),
            format!("socket,id={id},path={},reconnect=1", comma(socket)),
            "-device".into(),
            format!("vhost-user-blk-pci,chardev={id},num-queues={},queue-size={}", self.queues, self.queue_size),
        ])
    }

    /// QEMU's arguments for NBD, one word each; what [`credentials`] says comes before them, if the listener encrypts.
    pub fn qemu_nbd(&self) -> Option<Vec<String>> {
        let (id, listener) = (self.id(), self.nbd.first()?);
        let server = match &listener.at {
            At::Unix(path) => format!("server.type=unix,server.path={}", comma(path)),
            At::Tcp { host, port } => format!("server.type=inet,server.host={host},server.port={port}"),
        };
        let tls = match &listener.at {
            _ if !listener.tls => String::new(),
            At::Unix(_) => format!(",tls-creds={CREDENTIALS},tls-hostname={UNIX_HOST}"),
            At::Tcp { .. } => format!(",tls-creds={CREDENTIALS}"),
        };
        let (export, read_only) = (comma(&self.name), if self.read_only { ",read-only=on" } else { "" });
        Some(vec![
            "-blockdev".into(),
            format!("driver=nbd,node-name={id},{server},export={export}{tls},reconnect-delay=60{read_only}"),
            "-device".into(),
            format!("virtio-blk-pci,drive={id}"),
        ])
    }

    /// Whether QEMU needs certificates to reach it over NBD.
    pub fn encrypts(&self) -> bool {
        self.nbd.first().is_some_and(|l| l.tls)
    }

    /// libvirt's XML of the disk over vhost-user, as `target` of the guest.
    pub fn libvirt(&self, target: &str) -> Option<String> {
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
    pub fn libvirt_nbd(&self, target: &str) -> Option<String> {
        let listener = self.nbd.first()?;
        let host = match &listener.at {
            At::Unix(path) => format!("<host transport='unix' socket='{}'/>", xml(path)),
            At::Tcp { host, port } => format!("<host name='{}' port='{port}'/>", xml(host)),
        };
        let tls = match &listener.at {
            _ if !listener.tls => String::new(),
            At::Unix(_) => format!(" tls='yes' tlsHostname='{UNIX_HOST}'"),
            At::Tcp { .. } => " tls='yes'".to_string(),
        };
        Some(format!(
            "<disk type='network' device='disk'>\n  <driver name='qemu' type='raw' cache='none' io='threads'/>\n  \
               <source protocol='nbd' name='{}'{tls}>\n    {host}\n  </source>\n  \
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
        let uri = |listener: &Listener| {
            let scheme = if listener.tls { "nbds" } else { "nbd" };
            match &listener.at {
                At::Unix(path) => format!("{scheme}+unix:///{name}?socket={}", percent(path)),
                At::Tcp { host, port } if host.contains(':') => format!("{scheme}://[{host}]:{port}/{name}"),
                At::Tcp { host, port } => format!("{scheme}://{host}:{port}/{name}"),
            }
        };
        self.nbd.iter().map(uri).collect()
    }
}

/// QEMU's arguments for encrypted NBD: the directory with the certificates.
pub fn credentials(directory: &str) -> Vec<String> {
    let directory = comma(directory);
    vec!["-object".into(), format!("tls-creds-x509,id={CREDENTIALS},endpoint=client,verify-peer=on,dir={directory}")]
}

/// The memory of a guest, which the daemon shares.
pub fn shared_memory(memory: Size) -> Vec<String> {
    vec![
        "-object".into(),
        format!("memory-backend-memfd,id=uc-mem,size={}M,share=on,prealloc=on", memory.0.div_ceil(MIB)),
        "-machine".into(),
        "memory-backend=uc-mem".into(),
    ]
}
