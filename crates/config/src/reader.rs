//! From TOML to what was asked for: values of the right kind, with their lines; everything odd becomes a problem.
//!
//! Owns the walk over the parsed file. Never checks anything across keys, never looks at the machine. Invariant: it
//! goes on after a problem, so that one run names them all.

use super::keys::{self, Section};
use super::problem::{Problem, Severity};
use super::spec::{
    DaemonSpec, DiskSpec, KsmSpec, Lines, ListenSpec, NbdSpec, NodeSpec, PressureSpec, ScanSpec, ServeSpec, SharesSpec,
    VmControlSpec,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use undercroft_units::{Percent, Size, Time, UnitError};

/// Reads the text of a configuration file. `file` is only for the record.
pub fn read(text: &str, file: &Path) -> (ServeSpec, Vec<Problem>) {
    let starts = std::iter::once(0).chain(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1));
    let mut reader = Reader { starts: starts.collect(), broken: Vec::new(), problems: Vec::new() };
    let (root, errors) = DeTable::parse_recoverable(text);
    for e in &errors {
        let line = e.span().map(|s| reader.line(s.start));
        // One is enough to correct a line, and after the first the parser mostly guesses.
        if reader.problems.iter().any(|p| p.line == line) {
            continue;
        }
        reader.problem(line, "", format!("this is not TOML: {}", e.message().trim()), syntax_remedy(text, line));
    }
    // The parser recovers by guessing: what it made of a broken line is neither a value nor a second problem.
    reader.broken = reader.problems.iter().filter_map(|p| p.line).collect();
    let mut spec = reader.root(root.get_ref());
    spec.config_file = Some(file.to_path_buf());
    let broken = std::mem::take(&mut reader.broken);
    let mut seen = 0;
    reader.problems.retain(|p| {
        seen += 1;
        seen <= errors.len() || !p.line.is_some_and(|l| broken.contains(&l))
    });
    (spec, reader.problems)
}

fn syntax_remedy(text: &str, line: Option<usize>) -> String {
    let line = line.and_then(|n| text.lines().nth(n - 1)).unwrap_or("");
    let value = line.split_once('=').map_or("", |(_, v)| v).trim();
    let unquoted = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/' || c == '.')
        && value.chars().all(|c| c.is_ascii_graphic());
    if unquoted && value != "true" && value != "false" && value.len() <= 100 {
        let key = line.split('=').next().unwrap_or("").trim();
        format!("texts, sizes and times stand in quotes: {key} = \"{value}\"")
    } else {
        "correct the line; `man undercroft.toml` shows a whole file".to_string()
    }
}

struct Reader {
    /// Offset of the first byte of each line.
    starts: Vec<usize>,
    /// Lines that are not TOML.
    broken: Vec<usize>,
    problems: Vec<Problem>,
}

/// One table being read.
struct Table<'r, 'a, 'i> {
    reader: &'r mut Reader,
    table: &'a DeTable<'i>,
    section: &'static Section,
    place: String,
    lines: Lines,
}

impl Reader {
    fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|s| *s <= offset).max(1)
    }

    fn problem(&mut self, line: Option<usize>, place: &str, error: String, remedy: impl Into<String>) {
        let (place, remedy) = (place.to_string(), remedy.into());
        self.problems.push(Problem { severity: Severity::Error, line, place, error, remedy });
    }

    /// Opens a table for reading; unknown keys become problems here.
    fn open<'r, 'a, 'i>(
        &'r mut self,
        table: &'a DeTable<'i>,
        section: &'static Section,
        place: &str,
    ) -> Table<'r, 'a, 'i> {
        for key in table.keys() {
            let name: &str = key.get_ref();
            if section.keys.iter().any(|k| k.name == name) {
                continue;
            }
            let shown: String = name.chars().take(60).collect();
            let within = match section.header {
                "" => "the file",
                header if header == keys::DISK.header => "a disk",
                header => header,
            };
            let remedy = match keys::nearest(name, section.keys.iter().map(|k| k.name)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => match keys::SECTIONS.iter().find(|s| s.keys.iter().any(|k| k.name == name)) {
                    Some(other) if !other.header.is_empty() => format!("it belongs into {}", other.header),
                    _ => {
                        let known: Vec<_> = section.keys.iter().map(|k| k.name).collect();
                        format!("known keys are {}", known.join(", "))
                    }
                },
            };
            let line = self.line(key.span().start);
            self.problem(Some(line), place, format!("unknown key \"{shown}\" in {within}"), remedy);
        }
        Table { reader: self, table, section, place: place.to_string(), lines: BTreeMap::new() }
    }

    fn listener(&mut self, line: usize, table: &DeTable<'_>, place: &str) -> ListenSpec {
        let mut t = self.open(table, &keys::NBD_LISTEN, place);
        let mut listen = ListenSpec {
            unix: t.path("unix"),
            tcp: t.text("tcp"),
            exports: t.texts("exports"),
            tls: t.text("tls"),
            tls_cert: t.path("tls_cert"),
            tls_key: t.path("tls_key"),
            tls_client_ca: t.path("tls_client_ca"),
            tls_client_crl: t.path("tls_client_crl"),
            connections: t.number("connections"),
            connections_per_export: t.number("connections_per_export"),
            line: Some(line),
            lines: Lines::new(),
        };
        listen.lines = t.lines;
        listen
    }

    fn root(&mut self, root: &DeTable<'_>) -> ServeSpec {
        let mut spec = ServeSpec::default();
        let mut top = self.open(root, &keys::ROOT, "");
        let (store, daemon, nbd) = (top.table("store"), top.table("daemon"), top.table("nbd"));
        let (pressure, ksm) = (top.table("pressure"), top.table("ksm"));
        let scan = top.table("scan");
        let shares = top.table("shares");
        let (vms, disks) = (top.tables("vm"), top.tables("disk"));
        if let Some((_, table)) = store {
            let mut t = self.open(table, &keys::STORE, "store");
            spec.memory = t.size("memory");
            spec.share = t.boolean("share");
            spec.floor = t.size("floor");
            spec.lines.append(&mut t.lines);
        }
        if let Some((_, table)) = shares {
            let mut t = self.open(table, &keys::SHARES, "shares");
            let (controller, interval) = (t.text("controller"), t.time("interval"));
            spec.shares = SharesSpec { controller, interval, lines: t.lines };
        }
        if let Some((_, table)) = pressure {
            spec.pressure = self.pressure(table);
        }
        if let Some((_, table)) = ksm {
            spec.ksm = self.ksm(table);
        }
        if let Some((_, table)) = daemon {
            spec.daemon = self.daemon(table);
        }
        if let Some((_, table)) = nbd {
            let mut t = self.open(table, &keys::NBD, "nbd");
            spec.nbd_unix = t.path("unix");
            spec.nbd_tcp = t.text("tcp");
            let mut nbd = NbdSpec {
                memory: t.size("memory"),
                slow_after: t.time("slow_after"),
                connections: t.number("connections"),
                connections_per_export: t.number("connections_per_export"),
                handshakes: t.number("handshakes"),
                handshake_timeout: t.time("handshake_timeout"),
                ..NbdSpec::default()
            };
            let listen = t.tables("listen");
            // Apart: [store] has a key of the same name.
            nbd.lines = t.lines.clone();
            let plain = ["unix", "tcp"];
            spec.lines.extend(t.lines.iter().filter(|(key, _)| plain.contains(key)).map(|(&key, &line)| (key, line)));
            for (n, (line, table)) in listen.into_iter().enumerate() {
                nbd.listen.push(self.listener(line, table, &format!("nbd.listen {}", n + 1)));
            }
            spec.nbd = nbd;
        }
        if let Some((_, table)) = scan {
            let mut t = self.open(table, &keys::SCAN, "scan");
            let mut scan = ScanSpec {
                enabled: t.boolean("enabled"),
                cpu: t.unit("cpu", "a percentage", "\"5%\"", Percent::from_str),
                period_min: t.time("period_min"),
                period_max: t.time("period_max"),
                track_writes: t.boolean("track_writes"),
                memory: t.size("memory"),
                lines: Lines::new(),
            };
            scan.lines = t.lines;
            spec.scan = scan;
        }
        let mut vm_lines: BTreeMap<String, usize> = BTreeMap::new();
        for (i, (line, table)) in vms.into_iter().enumerate() {
            let mut t = self.open(table, &keys::VM, &format!("vm {}", i + 1));
            let name = t.text("name");
            let vm_disks = t.tables("disk");
            let containers = t.tables("container");
            let node = t.node();
            let pid_file = t.path("pid_file");
            let (socket, group) = (t.path("control_socket"), t.group("control_group"));
            let control_lines = t.lines.clone();
            let trust = t.text("trust");
            let trust_line = t.lines.get("trust").copied();
            let pid_line = t.lines.get("pid_file").copied();
            let line = t.lines.get("name").copied().unwrap_or(line);
            let Some(name) = name else {
                if !table.contains_key("name") {
                    let place = format!("vm {}", i + 1);
                    self.problem(Some(line), &place, "it has no name".into(), "add name = \"...\" below [[vm]]");
                }
                continue;
            };
            if let Some(first) = vm_lines.get(&name) {
                let error = format!("there is a VM of that name on line {first} already");
                self.problem(Some(line), &format!("vm \"{name}\""), error, "give one of them another name");
            } else {
                vm_lines.insert(name.clone(), line);
            }
            spec.nodes.extend(node.map(|n| NodeSpec { name: name.clone(), ..n }));
            for (line, table) in containers {
                spec.nodes.extend(self.container(line, table, &name));
            }
            if socket.is_some() || group.is_some() {
                spec.vm_controls.push(VmControlSpec { vm: name.clone(), socket, group, lines: control_lines });
            }
            spec.pid_files.extend(pid_file.map(|path| (name.clone(), path, pid_line)));
            for (line, table) in vm_disks {
                let Some(mut disk) = self.disk(line, table, Some(&name)) else { continue };
                if disk.trust.is_none() {
                    disk.trust.clone_from(&trust);
                    disk.lines.extend(trust_line.map(|l| ("trust", l)));
                }
                spec.disks.push(disk);
            }
        }
        for (line, table) in disks {
            spec.disks.extend(self.disk(line, table, None));
        }
        spec
    }

    fn container(&mut self, line: usize, table: &DeTable<'_>, vm: &str) -> Option<NodeSpec> {
        let known: Option<&str> = table.get("name").and_then(|v| v.get_ref().as_str());
        let place = format!("container \"{vm}/{}\"", known.unwrap_or("?").chars().take(80).collect::<String>());
        let mut t = self.open(table, &keys::CONTAINER, &place);
        let name = t.required("name", line)?;
        let node = t.node().unwrap_or_default();
        let mut lines = node.lines.clone();
        lines.entry("name").or_insert(line);
        Some(NodeSpec { name: format!("{vm}/{name}"), lines, ..node })
    }

    fn pressure(&mut self, table: &DeTable<'_>) -> PressureSpec {
        let mut t = self.open(table, &keys::PRESSURE, "pressure");
        let mut spec = PressureSpec {
            watch: t.boolean("watch"),
            stall: t.time("stall"),
            available_min: t.size("available_min"),
            give_within: t.time("give_within"),
            calm: t.time("calm"),
            regrow: t.time("regrow"),
            lines: Lines::new(),
        };
        spec.lines = t.lines;
        spec
    }

    fn ksm(&mut self, table: &DeTable<'_>) -> KsmSpec {
        let mut t = self.open(table, &keys::KSM, "ksm");
        let mut spec = KsmSpec {
            manage: t.boolean("manage"),
            run: t.boolean("run"),
            pages_to_scan: t.number("pages_to_scan"),
            sleep: t.time("sleep"),
            advisor: t.text("advisor"),
            advisor_target_scan_time: t.time("advisor_target_scan_time"),
            advisor_max_cpu: t.number("advisor_max_cpu"),
            advisor_min_pages_to_scan: t.number("advisor_min_pages_to_scan"),
            advisor_max_pages_to_scan: t.number("advisor_max_pages_to_scan"),
            smart_scan: t.boolean("smart_scan"),
            use_zero_pages: t.boolean("use_zero_pages"),
            lines: Lines::new(),
        };
        spec.lines = t.lines;
        spec
    }

    fn daemon(&mut self, table: &DeTable<'_>) -> DaemonSpec {
        let mut t = self.open(table, &keys::DAEMON, "daemon");
        let mut spec = DaemonSpec {
            control: t.path("control"),
            control_group: t.group("control_group"),
            runtime_dir: t.path("runtime_dir"),
            disk_group: t.group("disk_group"),
            workers: t.number("workers"),
            poll: t.time("poll"),
            copy_cpu: t.number("copy_cpu"),
            check_captures: t.boolean("check_captures"),
            metrics: t.text("metrics"),
            log_level: t.text("log_level"),
            log_format: t.text("log_format"),
            lines: Lines::new(),
        };
        spec.lines = t.lines;
        spec
    }

    fn disk(&mut self, line: usize, table: &DeTable<'_>, vm: Option<&str>) -> Option<DiskSpec> {
        let known_name = match table.get("name").map(|v| v.get_ref()) {
            Some(DeValue::String(s)) => s.to_string(),
            _ => String::new(),
        };
        let place = place_of(vm, &known_name);
        let mut t = self.open(table, &keys::DISK, &place);
        let name = t.required("name", line);
        let image = t.required("image", line);
        let mut spec = DiskSpec {
            name: name.clone().unwrap_or_default(),
            vm: vm.map(str::to_string),
            image: image.clone().unwrap_or_default(),
            format: t.text("format"),
            read_only: t.boolean("read_only"),
            socket: t.path("socket"),
            vhost_user: t.boolean("vhost_user"),
            nbd: t.boolean("nbd"),
            policy: t.text("policy"),
            size: t.size("size"),
            weight: t.number("weight"),
            floor: t.size("floor"),
            ceiling: t.size("ceiling"),
            goal: t.text("goal"),
            hint: t.text("hint"),
            store: t.text("store"),
            container: t.text("container"),
            readahead: t.size("readahead"),
            write_allocate: t.boolean("write_allocate"),
            exclusive: t.text("exclusive"),
            trust: t.text("trust"),
            share_base: t.boolean("share_base"),
            trust_memory: t.boolean("trust_memory"),
            serial: t.text("serial"),
            queues: t.number("queues"),
            queue_size: t.number("queue_size"),
            poll: t.time("poll"),
            lines: Lines::new(),
        };
        spec.lines = t.lines;
        spec.lines.entry("name").or_insert(line);
        (name.is_some() && image.is_some()).then_some(spec)
    }
}

/// How messages call a disk.
pub fn place_of(vm: Option<&str>, name: &str) -> String {
    let name: String = name.chars().take(80).collect();
    match vm {
        Some(vm) => format!("disk \"{}:{name}\"", vm.chars().take(80).collect::<String>()),
        None => format!("disk \"{name}\""),
    }
}

fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

impl<'a, 'i> Table<'_, 'a, 'i> {
    /// The value of a key, its line noted.
    fn get(&mut self, key: &'static str) -> Option<(usize, &'a DeValue<'i>)> {
        assert!(self.section.keys.iter().any(|k| k.name == key), "\"{key}\" is missing in keys.rs");
        let value: &'a Spanned<DeValue<'i>> = self.table.get(key)?;
        let line = self.reader.line(value.span().start);
        self.lines.insert(key, line);
        (!self.reader.broken.contains(&line)).then(|| (line, value.get_ref()))
    }

    fn wrong(&mut self, line: usize, key: &str, value: &DeValue<'_>, expected: &str, example: &str) {
        let error = format!("\"{key}\" must be {expected}, not {}", kind_of(value));
        self.reader.problem(Some(line), &self.place, error, format!("write it like {example}"));
    }

    fn text(&mut self, key: &'static str) -> Option<String> {
        match self.get(key)? {
            (_, DeValue::String(s)) => Some(s.to_string()),
            (line, other) => {
                self.wrong(line, key, other, "a text", &format!("{key} = \"...\""));
                None
            }
        }
    }

    fn required(&mut self, key: &'static str, line: usize) -> Option<String> {
        if !self.table.contains_key(key) {
            let header = if self.place.contains(':') { "[[vm.disk]]" } else { "[[disk]]" };
            let remedy = format!("add {key} = \"...\" below {header}");
            self.reader.problem(Some(line), &self.place, format!("it has no {key}"), remedy);
        }
        self.text(key)
    }

    fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        let (line, value) = self.get(key)?;
        let example = format!("{key} = [\"...\", \"...\"]");
        let DeValue::Array(list) = value else {
            self.wrong(line, key, value, "a list of texts", &example);
            return None;
        };
        let mut texts = Vec::new();
        for value in list.iter() {
            match value.get_ref() {
                DeValue::String(s) => texts.push(s.to_string()),
                other => {
                    let line = self.reader.line(value.span().start);
                    self.wrong(line, key, other, "a list of texts", &example);
                }
            }
        }
        Some(texts)
    }

    fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    fn group(&mut self, key: &'static str) -> Option<String> {
        match self.get(key)? {
            (_, DeValue::String(s)) => Some(s.to_string()),
            (_, DeValue::Integer(n)) if n.radix() == 10 => Some(n.as_str().to_string()),
            (line, other) => {
                self.wrong(line, key, other, "the name or number of a group", &format!("{key} = \"kvm\""));
                None
            }
        }
    }

    /// What is set for the node of the tree that this table is about, if anything is.
    fn node(&mut self) -> Option<NodeSpec> {
        let node = NodeSpec {
            name: String::new(),
            weight: self.number("weight"),
            floor: self.size("floor"),
            ceiling: self.size("ceiling"),
            controller: self.text("controller"),
            goal: self.text("goal"),
            policy: self.text("policy"),
            store: self.text("store"),
            lines: self.lines.clone(),
        };
        let texts = [&node.controller, &node.goal, &node.policy, &node.store];
        let sizes = [node.floor, node.ceiling];
        let set = node.weight.is_some() || sizes.iter().any(|s| s.is_some()) || texts.iter().any(|t| t.is_some());
        set.then_some(node)
    }

    fn boolean(&mut self, key: &'static str) -> Option<bool> {
        match self.get(key)? {
            (_, DeValue::Boolean(b)) => Some(*b),
            (line, other) => {
                self.wrong(line, key, other, "true or false", &format!("{key} = true"));
                None
            }
        }
    }

    fn number(&mut self, key: &'static str) -> Option<u64> {
        match self.get(key)? {
            (line, DeValue::Integer(n)) => match u64::from_str_radix(n.as_str(), n.radix()) {
                Ok(n) => Some(n),
                Err(_) => {
                    let error = format!("\"{key}\" must not be {n}");
                    let range = self.range(key);
                    self.reader.problem(Some(line), &self.place, error, format!("allowed is {range}"));
                    None
                }
            },
            (line, other) => {
                self.wrong(line, key, other, "a whole number", &format!("{key} = 4"));
                None
            }
        }
    }

    fn range(&self, key: &str) -> &'static str {
        let keys: &'static [keys::Key] = self.section.keys;
        keys.iter().find(|k| k.name == key).map_or("", |k| k.range)
    }

    fn size(&mut self, key: &'static str) -> Option<Size> {
        self.unit(key, "a size", "\"512MiB\"", Size::from_str)
    }

    fn time(&mut self, key: &'static str) -> Option<Time> {
        self.unit(key, "a time", "\"50us\"", Time::from_str)
    }

    fn unit<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        example: &str,
        parse: impl Fn(&str) -> Result<T, UnitError>,
    ) -> Option<T> {
        let (line, value) = self.get(key)?;
        let text = match value {
            DeValue::String(s) => s.to_string(),
            DeValue::Integer(n) if n.radix() == 10 => n.as_str().to_string(),
            other => {
                self.wrong(line, key, other, expected, &format!("{key} = {example}"));
                return None;
            }
        };
        parse(&text)
            .map_err(|e| self.reader.problem(Some(line), &self.place, format!("{key}: {}", e.problem), e.remedy))
            .ok()
    }

    fn table(&mut self, key: &'static str) -> Option<(usize, &'a DeTable<'i>)> {
        match self.get(key)? {
            (line, DeValue::Table(t)) => Some((line, t)),
            (line, other) => {
                self.wrong(line, key, other, "a table", &format!("[{key}]"));
                None
            }
        }
    }

    fn tables(&mut self, key: &'static str) -> Vec<(usize, &'a DeTable<'i>)> {
        let header = match self.section.header {
            "[[vm]]" => format!("[[vm.{key}]]"),
            "[nbd]" => format!("[[nbd.{key}]]"),
            _ => format!("[[{key}]]"),
        };
        match self.get(key) {
            None => Vec::new(),
            Some((_, DeValue::Array(list))) => {
                let mut tables = Vec::new();
                for value in list.iter() {
                    let line = self.reader.line(value.span().start);
                    match value.get_ref() {
                        DeValue::Table(t) => tables.push((line, t)),
                        other => self.wrong(line, key, other, "a list of tables", &header),
                    }
                }
                tables
            }
            Some((line, DeValue::Table(t))) => {
                let error = format!("\"{key}\" is one table, but there can be several");
                self.reader.problem(Some(line), &self.place, error, format!("write {header} in double brackets"));
                vec![(line, t)]
            }
            Some((line, other)) => {
                self.wrong(line, key, other, "a list of tables", &header);
                Vec::new()
            }
        }
    }
}
