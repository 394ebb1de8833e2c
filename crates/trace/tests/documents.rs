//! The table of formats in docs/trace-format.md is the list of formats.
//!
//! Owns the form of the table. Never says what a format is: its `Spec` does. `WRITE=1 cargo test -p undercroft-trace
//! --test documents` puts it in.

use std::fmt::Write;
use std::path::Path;
use undercroft_trace::Format;
use undercroft_trace::write::WRITTEN;

const FROM: &str = "<!-- formats: WRITE=1 cargo test -p undercroft-trace --test documents -->\n";
const TO: &str = "<!-- /formats -->\n";

fn table() -> String {
    let mut table = "| format | record | an access is | tenant |\n|---|---|---|---|\n".to_owned();
    for format in Format::ALL {
        let bold = if WRITTEN.contains(&format) { "**" } else { "" };
        let cells = format.described().map(|cell| if cell.is_empty() { "|".to_owned() } else { format!("| {cell} ") });
        writeln!(table, "| {bold}`{format}`{bold} {}|", cells.concat()).expect("into memory");
    }
    table
}

#[test]
fn the_table_of_formats_is_that_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/trace-format.md");
    let text = std::fs::read_to_string(&path).expect("the document");
    let (before, rest) = text.split_once(FROM).expect("where the table begins");
    let (written, after) = rest.split_once(TO).expect("where the table ends");
    let wanted = format!("\n{}\n", table());
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(&path, [before, FROM, &wanted, TO, after].concat()).expect("it can be written");
    } else {
        assert_eq!(written, wanted, "WRITE=1 cargo test -p undercroft-trace --test documents");
    }
}
