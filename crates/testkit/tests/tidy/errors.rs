//! Errors are types: no function of a product says what went wrong by a text alone.
//!
//! Owns what counts as such a function. Never looks at tests. Invariant: `Result` is told by its name, and a text by
//! `String`, `&str` or `Cow`.

use super::none;
use super::parsed::{Parsed, of_all, syntax};
use super::source::for_tests;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines with a `Result` whose error is a text, outside of what is for tests.
#[derive(Default)]
struct Texts(Vec<usize>);

/// Whether a type is a text.
fn is_text(of: &syn::Type) -> bool {
    match of {
        syn::Type::Path(p) => {
            p.path.segments.last().is_some_and(|s| ["String", "str", "Cow"].iter().any(|t| s.ident == t))
        }
        syn::Type::Reference(r) => is_text(&r.elem),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Texts {
    fn visit_item_mod(&mut self, m: &'ast syn::ItemMod) {
        if !for_tests(&m.attrs) {
            visit::visit_item_mod(self, m);
        }
    }

    fn visit_item_fn(&mut self, f: &'ast syn::ItemFn) {
        if !for_tests(&f.attrs) {
            visit::visit_item_fn(self, f);
        }
    }

    fn visit_path_segment(&mut self, s: &'ast syn::PathSegment) {
        if s.ident == "Result"
            && let syn::PathArguments::AngleBracketed(of) = &s.arguments
            && let Some(syn::GenericArgument::Type(error)) = of.args.iter().nth(1)
            && is_text(error)
        {
            self.0.push(s.span().start().line);
        }
        visit::visit_path_segment(self, s);
    }
}

fn texts(file: &syn::File) -> Vec<usize> {
    let mut found = Texts::default();
    found.visit_file(file);
    found.0
}

#[test]
fn errors_are_types() {
    let wrong: Vec<_> = of_all(|files| {
        let of = |f: &Parsed| texts(&f.syntax).iter().map(|line| format!("{}:{line}", f.file)).collect::<Vec<_>>();
        files.iter().filter(|f| f.file.contains("/src/") && !f.is_test).flat_map(of).collect()
    });
    none(&wrong, "errors that are texts: make them types");
}

#[test]
fn a_text_as_an_error_is_seen() {
    let of = |text: &str| texts(&syntax(text));
    assert_eq!(of("fn a() -> Result<(), String> {}"), [1]);
    assert_eq!(of("type A = \n std::result::Result<u8, &'static str>;"), [2]);
    assert_eq!(of("fn a() { let b: Result<_, Cow<'static, str>> = c(); }"), [1]);
    assert_eq!(of("fn a() -> Result<String, Error> {} fn b() -> Result<String> {}"), [0; 0]);
    assert_eq!(of("#[cfg(test)] mod t { fn a() -> Result<(), String> {} }"), [0; 0]);
}
