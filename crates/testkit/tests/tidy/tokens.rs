//! What a file names, by its tokens: with or without what stands in it for tests.
//!
//! Owns the recognition of items that are for tests alone. Never resolves a name. Invariant: what macros and attributes
//! are given is seen as well, for they are tokens too.

use super::parsed::{of_all, tokens};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Identifiers, with how often each is there.
pub type Identifiers = BTreeMap<String, usize>;

/// Whether the condition of a `cfg` holds in tests alone: it names `test`, and not within `not`.
pub fn asks_for_test(condition: TokenStream) -> bool {
    let mut negated = false;
    for token in condition {
        match token {
            TokenTree::Ident(i) if i == "test" => return true,
            TokenTree::Ident(i) => negated = i == "not",
            TokenTree::Group(g) if !negated && asks_for_test(g.stream()) => return true,
            _ => {}
        }
    }
    false
}

/// Whether `[...]` of an attribute says that its item is for tests alone.
fn marks_test(attribute: &TokenStream) -> bool {
    let mut tokens = attribute.clone().into_iter();
    match tokens.next() {
        Some(TokenTree::Ident(i)) if i == "test" => true,
        Some(TokenTree::Ident(i)) if i == "cfg" => match tokens.next() {
            Some(TokenTree::Group(g)) => asks_for_test(g.stream()),
            _ => false,
        },
        _ => false,
    }
}

/// Calls `each` with every identifier, but for those of items that are for tests, if `product` is asked for.
fn walk(stream: TokenStream, product: bool, each: &mut dyn FnMut(String)) {
    let mut tokens = stream.into_iter().peekable();
    // Within an item that is for tests: up to its block or semicolon.
    let mut skipping = false;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(p) if p.as_char() == '#' => {
                if let Some(TokenTree::Group(g)) = tokens.peek()
                    && g.delimiter() == Delimiter::Bracket
                {
                    skipping |= product && marks_test(&g.stream());
                    if !skipping {
                        walk(g.stream(), product, each);
                    }
                    tokens.next();
                }
            }
            TokenTree::Punct(p) if p.as_char() == ';' => skipping = false,
            TokenTree::Group(g) if skipping => skipping = g.delimiter() != Delimiter::Brace,
            TokenTree::Group(g) => walk(g.stream(), product, each),
            TokenTree::Ident(i) if !skipping => each(i.to_string()),
            _ => {}
        }
    }
}

/// Every identifier of a file and how often it stands there: without its tests, and with them.
pub fn identifiers(file: &str) -> &'static [Identifiers; 2] {
    static READ: OnceLock<BTreeMap<String, [Identifiers; 2]>> = OnceLock::new();
    let read = READ.get_or_init(|| {
        let both = |tokens: &TokenStream| [true, false].map(|product| read(tokens.clone(), product));
        of_all(move |files| files.iter().map(|f| (f.file.clone(), both(&f.tokens))).collect())
    });
    &read[file]
}

fn read(stream: TokenStream, product: bool) -> Identifiers {
    let mut found = Identifiers::new();
    walk(stream, product, &mut |i| {
        *found.entry(i.strip_prefix("r#").map_or(i.clone(), str::to_string)).or_default() += 1;
    });
    found
}

#[test]
fn tests_are_told_from_the_product() {
    let text = "use a; #[cfg(test)] use b; #[cfg(all(test, not(miri)))] mod t { fn c() {} } #[cfg(not(test))] fn d() {}
        #[test] fn e() { f(); } #[derive(g::H)] struct I; fn j() { k!(l) }";
    let found: String = read(tokens("a file", text), true).into_keys().filter(|i| i.len() == 1).collect();
    assert_eq!(found, "HIadgjkl");
    assert!(read(tokens("a file", text), false).contains_key("c"));
}
