//! From TOML to what was asked for: values of the right kind, with their lines; everything odd becomes a problem.
//!
//! Owns the walk over the parsed file. Never checks anything across keys, never looks at the machine. Invariant: it
//! goes on after a problem, so that one run names them all.

use super::disk::place_of;
use super::keys::{self, Kind, Section};
use super::problem::{Problem, Severity};
use super::spec::{DiskSpec, ListenSpec, NbdSpec, NodeSpec, ServeSpec, VmSpec};
use super::written::{Keys, Lines, Values};
use std::collections::BTreeMap;
use std::path::Path;
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
            let remedy = match keys::instead_of(name, section.keys.iter().map(|k| k.name)) {
                _ if name == "vm" && section.header == keys::DISK.header => keys::DISKS_OF_VMS.to_owned(),
                Some(remedy) => remedy,
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

    fn root(&mut self, root: &DeTable<'_>) -> ServeSpec {
        let mut top = self.open(root, &keys::ROOT, "");
        let (store, daemon, nbd) = (top.table("store"), top.table("daemon"), top.table("nbd"));
        let (pressure, ksm, ssd) = (top.table("pressure"), top.table("ksm"), top.table("ssd"));
        let (scan, shares) = (top.table("scan"), top.table("shares"));
        let (vms, disks) = (top.tables("vm"), top.tables("disk"));
        let mut spec = ServeSpec {
            store: self.section(store, &keys::STORE, "store"),
            ssd: self.section(ssd, &keys::SSD, "ssd"),
            shares: self.section(shares, &keys::SHARES, "shares"),
            pressure: self.section(pressure, &keys::PRESSURE, "pressure"),
            ksm: self.section(ksm, &keys::KSM, "ksm"),
            daemon: self.section(daemon, &keys::DAEMON, "daemon"),
            nbd: self.nbd(nbd),
            scan: self.section(scan, &keys::SCAN, "scan"),
            ..ServeSpec::default()
        };
        let mut vm_lines = BTreeMap::new();
        for (i, (line, table)) in vms.into_iter().enumerate() {
            self.vm(i, line, table, &mut vm_lines, &mut spec);
        }
        for (line, table) in disks {
            spec.disks.extend(self.disk(line, table, None));
        }
        spec
    }

    /// A table that holds nothing but plain keys; nothing is set where it is missing.
    fn section<S: Keys>(&mut self, table: Option<(usize, &DeTable<'_>)>, section: &'static Section, place: &str) -> S {
        let Some((_, table)) = table else { return S::default() };
        let mut t = self.open(table, section, place);
        S::with_lines(S::read(&mut t), t.lines)
    }

    fn nbd(&mut self, table: Option<(usize, &DeTable<'_>)>) -> NbdSpec {
        let Some((_, table)) = table else { return NbdSpec::default() };
        let mut t = self.open(table, &keys::NBD, "nbd");
        let mut nbd = NbdSpec::read(&mut t);
        let listen = t.tables("listen");
        nbd.lines = t.lines;
        for (n, (line, table)) in listen.into_iter().enumerate() {
            let place = format!("nbd.listen {}", n + 1);
            let listener = self.section(Some((line, table)), &keys::NBD_LISTEN, &place);
            nbd.listen.push(ListenSpec { line: Some(line), ..listener });
        }
        nbd
    }

    /// `[[vm]]` number `i`, with its containers and disks.
    fn vm(
        &mut self,
        i: usize,
        line: usize,
        table: &DeTable<'_>,
        named: &mut BTreeMap<String, usize>,
        spec: &mut ServeSpec,
    ) {
        let mut t = self.open(table, &keys::VM, &format!("vm {}", i + 1));
        let name = t.text("name");
        let (disks, containers) = (t.tables("disk"), t.tables("container"));
        let node = NodeSpec::read(&mut t);
        let vm = VmSpec::read(&mut t);
        let lines = t.lines;
        let line = lines.get("name").copied().unwrap_or(line);
        let Some(name) = name else {
            if !table.contains_key("name") {
                let place = format!("vm {}", i + 1);
                self.problem(Some(line), &place, "it has no name".into(), "add name = \"...\" below [[vm]]");
            }
            return;
        };
        if let Some(first) = named.get(&name) {
            let error = format!("there is a VM of that name on line {first} already");
            self.problem(Some(line), &format!("vm \"{name}\""), error, "give one of them another name");
        } else {
            named.insert(name.clone(), line);
        }
        if !node.is_empty() {
            spec.nodes.push(NodeSpec { name: name.clone(), lines: lines.clone(), ..node });
        }
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for (line, table) in containers {
            let Some(node) = self.container(line, table, &name) else { continue };
            let line = node.lines.get("name").copied().unwrap_or(line);
            if let Some(first) = known.get(&node.name) {
                let error = format!("there is a container of that name on line {first} already");
                let place = format!("container \"{}\"", node.name);
                self.problem(Some(line), &place, error, "make one of them, or give one another name");
            } else {
                known.insert(node.name.clone(), line);
            }
            spec.nodes.push(node);
        }
        for (line, table) in disks {
            let Some(mut disk) = self.disk(line, table, Some(&name)) else { continue };
            if disk.trust.is_none() {
                disk.trust.clone_from(&vm.trust);
                disk.lines.extend(lines.get("trust").map(|l| ("trust", *l)));
            }
            spec.disks.push(disk);
        }
        spec.vms.push(VmSpec { name, lines, ..vm });
    }

    fn container(&mut self, line: usize, table: &DeTable<'_>, vm: &str) -> Option<NodeSpec> {
        let known: Option<&str> = table.get("name").and_then(|v| v.get_ref().as_str());
        let place = format!("container \"{vm}/{}\"", known.unwrap_or("?").chars().take(80).collect::<String>());
        let mut t = self.open(table, &keys::CONTAINER, &place);
        let name = t.required("name", line)?;
        let node = NodeSpec::read(&mut t);
        let mut lines = t.lines;
        lines.entry("name").or_insert(line);
        Some(NodeSpec { name: format!("{vm}/{name}"), lines, ..node })
    }

    fn disk(&mut self, line: usize, table: &DeTable<'_>, vm: Option<&str>) -> Option<DiskSpec> {
        let known_name = match table.get("name").map(|v| v.get_ref()) {
            Some(DeValue::String(s)) => s.to_string(),
            _ => String::new(),
        };
        let place = place_of(vm, &known_name);
        let mut t = self.open(table, &keys::DISK, &place);
        let (name, image) = (t.required("name", line), t.required("image", line));
        let keys = DiskSpec::read(&mut t);
        let mut lines = t.lines;
        lines.entry("name").or_insert(line);
        Some(DiskSpec { name: name?, image: image?, vm: vm.map(str::to_string), lines, ..keys })
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
        assert!(self.section.key(key).is_some(), "\"{key}\" is missing in `keys`");
        let value: &'a Spanned<DeValue<'i>> = self.table.get(key)?;
        let line = self.reader.line(value.span().start);
        self.lines.insert(key, line);
        (!self.reader.broken.contains(&line)).then(|| (line, value.get_ref()))
    }

    fn wrong(&mut self, line: usize, key: &str, value: &DeValue<'_>, expected: &str, example: &str) {
        let error = format!("\"{key}\" must be {expected}, not {}", kind_of(value));
        self.reader.problem(Some(line), &self.place, error, format!("write it like {example}"));
    }

    fn required(&mut self, key: &'static str, line: usize) -> Option<String> {
        if !self.table.contains_key(key) {
            let header = if self.place.contains(':') { "[[vm.disk]]" } else { "[[disk]]" };
            let remedy = format!("add {key} = \"...\" below {header}");
            self.reader.problem(Some(line), &self.place, format!("it has no {key}"), remedy);
        }
        self.text(key)
    }

    fn range(&self, key: &str) -> &'static str {
        self.section.key(key).map_or("", |k| k.range)
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

impl Values for Table<'_, '_, '_> {
    fn text(&mut self, key: &'static str) -> Option<String> {
        match self.get(key)? {
            (_, DeValue::String(s)) => Some(s.to_string()),
            (line, other) => {
                self.wrong(line, key, other, "a text", &format!("{key} = \"...\""));
                None
            }
        }
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

    fn size(&mut self, key: &'static str) -> Option<Size> {
        self.unit(key, "a size", "\"512MiB\"", Size::from_str)
    }

    fn time(&mut self, key: &'static str) -> Option<Time> {
        self.unit(key, "a time", "\"50us\"", Time::from_str)
    }

    fn percent(&mut self, key: &'static str) -> Option<Percent> {
        self.unit(key, "a percentage", "\"5%\"", Percent::from_str)
    }

    fn kind(&self, key: &str) -> Option<Kind> {
        self.section.key(key).map(|k| k.kind)
    }
}
