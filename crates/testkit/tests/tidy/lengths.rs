//! How long files and lines may be, of Rust and of Python, and how long functions of Python; those of Rust: `source`.
//!
//! Owns these bounds. Never looks at documents, nor at data that tests read. Invariant: a line is too long whatever
//! stands in it: strings are broken (in Rust by a backslash), so nothing needs an exception by its kind.

use super::source::FUNCTION_LINES_MAX;
use super::{files, none, root};

/// Lines of a file, and characters of a line, at most.
const FILE_LINES_MAX: usize = 600;
const LINE_CHARS_MAX: usize = 120;

/// How many lines a source has, and which of them are too long, counted from 1.
fn measured(text: &str) -> (usize, Vec<usize>) {
    let long = text.lines().enumerate().filter(|(_, line)| line.chars().count() > LINE_CHARS_MAX);
    (text.lines().count(), long.map(|(n, _)| n + 1).collect())
}

/// Whether a file is source that the bounds are for.
fn is_source(file: &str) -> bool {
    file.ends_with(".rs") || file.ends_with(".py")
}

/// What goes on beyond the end of a line of Python: a string of three quotes, or brackets.
#[derive(Default)]
struct GoesOn {
    quote: Option<u8>,
    brackets: usize,
}

impl GoesOn {
    fn is(&self) -> bool {
        self.quote.is_some() || self.brackets > 0
    }

    fn read(&mut self, line: &str) {
        let bytes = line.as_bytes();
        // A string of one quote ends with its line.
        let mut short = None;
        let mut i = 0;
        while let Some(&b) = bytes.get(i) {
            let three = bytes[i..].starts_with(&[b; 3]);
            if self.quote.or(short).is_some() && b == b'\\' {
                i += 1;
            } else if self.quote == Some(b) && three {
                self.quote = None;
                i += 2;
            } else if short == Some(b) {
                short = None;
            } else if self.quote.or(short).is_none() {
                match b {
                    b'#' => return,
                    b'"' | b'\'' if three => {
                        self.quote = Some(b);
                        i += 2;
                    }
                    b'"' | b'\'' => short = Some(b),
                    b'(' | b'[' | b'{' => self.brackets += 1,
                    b')' | b']' | b'}' => self.brackets = self.brackets.saturating_sub(1),
                    _ => {}
                }
            }
            i += 1;
        }
    }
}

/// A function of Python: its name, its indentation, its first and its last line.
struct Function {
    name: String,
    indent: usize,
    first: usize,
    last: usize,
}

/// All functions of a source, inner ones too. A function ends before the next line that is no deeper than its `def`;
/// decorators before it, and empty lines and comments after it, are no part of it.
fn python_functions(text: &str) -> Vec<Function> {
    let (mut open, mut found) = (Vec::<Function>::new(), Vec::new());
    let mut goes_on = GoesOn::default();
    for (n, line) in text.lines().enumerate() {
        let statement = line.trim_start();
        if !goes_on.is() && !statement.is_empty() && !statement.starts_with('#') {
            let indent = line.len() - statement.len();
            while let Some(ended) = open.pop_if(|f| f.indent >= indent) {
                found.push(ended);
            }
            let rest = statement.strip_prefix("async ").unwrap_or(statement).strip_prefix("def ");
            if let Some((name, _)) = rest.and_then(|rest| rest.split_once('(')) {
                open.push(Function { name: name.to_owned(), indent, first: n, last: n });
            }
            open.iter_mut().for_each(|f| f.last = n);
        } else if goes_on.is() {
            open.iter_mut().for_each(|f| f.last = n);
        }
        goes_on.read(line);
    }
    found.extend(open.into_iter().rev());
    found
}

#[test]
fn functions_of_python_are_short() {
    let root = root();
    let mut long = Vec::new();
    for file in files(&root).into_iter().filter(|f| f.ends_with(".py")) {
        let functions = python_functions(&std::fs::read_to_string(root.join(&file)).unwrap());
        let lines = functions.iter().map(|f| (f, f.last - f.first + 1));
        let too_long = lines.filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
        long.extend(too_long.map(|(f, lines)| format!("{file}: {}: {lines}", f.name)));
    }
    none(&long, "functions have 80 lines at most");
}

#[test]
fn where_functions_of_python_end_is_seen() {
    let text = "\
@decorated
def a(
    x=\"(\",  # (
):
    \"\"\"It says 'a.

deep( \\\"\"\" not its end
\"\"\"
    def inner(): return '\"\"\"'

    # its last comment

async def b():
    return [
1,
    ]

class C:
    def c(self):
        pass
define = 1
";
    let found: Vec<_> = python_functions(text).iter().map(|f| format!("{} {}-{}", f.name, f.first, f.last)).collect();
    assert_eq!(found, ["inner 8-8", "a 1-8", "b 12-15", "c 18-19"]);
}

#[test]
fn files_and_lines_are_short() {
    let root = root();
    let (mut long_files, mut long_lines) = (Vec::new(), Vec::new());
    for file in files(&root).into_iter().filter(|f| is_source(f)) {
        let (lines, long) = measured(&std::fs::read_to_string(root.join(&file)).unwrap());
        if lines > FILE_LINES_MAX {
            long_files.push(format!("{file}: {lines}"));
        }
        long_lines.extend(long.iter().map(|n| format!("{file}:{n}")));
    }
    none(&long_files, "files have 600 lines at most");
    none(&long_lines, "lines have 120 characters at most");
}

#[test]
fn what_is_long_is_seen() {
    let line = |chars: usize| "é".repeat(chars);
    assert_eq!(measured(&format!("{}\n{}\n", line(120), line(121))), (2, vec![2]), "characters count, not bytes");
    let comment = format!("fn f() {{}} // {}", line(120));
    let text = format!("    \"{}\",", line(120));
    assert_eq!(measured(&format!("{comment}\nuse a;\n{text}")), (3, vec![1, 3]), "whatever stands in it");
    assert_eq!(measured(&"x\n".repeat(601)).0, FILE_LINES_MAX + 1);
    assert!(is_source("tests/test_a.py") && is_source("crates/a/src/b.rs"));
    assert!(!is_source("docs/a.md") && !is_source("scripts/setup.sh"));
}
