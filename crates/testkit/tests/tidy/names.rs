//! Types that a crate declares `pub` have names of their own: what a reader looks for stands in one place.
//!
//! Owns that rule alone. Never compares crates: those that are imported together are named apart by hand. Invariant: a
//! name counts once for each declaration, wherever in the crate its module stands and whether or not it is exported.

use super::none;
use super::parsed::{Parsed, of_all, syntax};
use super::source::for_tests;
use std::collections::BTreeMap;
use syn::visit::{self, Visit};

/// The names of types declared `pub` in a file, outside of its tests.
#[derive(Default)]
struct Types(Vec<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (attributes, visibility, name) = match item {
            syn::Item::Struct(i) => (&i.attrs, &i.vis, &i.ident),
            syn::Item::Enum(i) => (&i.attrs, &i.vis, &i.ident),
            syn::Item::Union(i) => (&i.attrs, &i.vis, &i.ident),
            syn::Item::Trait(i) => (&i.attrs, &i.vis, &i.ident),
            syn::Item::Type(i) => (&i.attrs, &i.vis, &i.ident),
            syn::Item::Mod(i) if !for_tests(&i.attrs) => return visit::visit_item(self, item),
            _ => return,
        };
        if matches!(visibility, syn::Visibility::Public(_)) && !for_tests(attributes) {
            self.0.push(name.to_string());
        }
    }
}

fn types(file: &syn::File) -> Vec<String> {
    let mut types = Types::default();
    types.visit_file(file);
    types.0
}

#[test]
fn public_types_have_names_of_their_own() {
    let places = of_all(|files| {
        let mut places = BTreeMap::<(String, String), Vec<String>>::new();
        for Parsed { file, syntax, is_test, .. } in files {
            let Some((own, _)) = file.strip_prefix("crates/").and_then(|f| f.split_once("/src/")) else { continue };
            // A program beside a library is a crate of its own.
            if *is_test || file.contains("/src/bin/") {
                continue;
            }
            for name in types(syntax) {
                places.entry((own.to_string(), name)).or_default().push(file.clone());
            }
        }
        places
    });
    let shared = places.iter().filter(|(_, files)| files.len() > 1);
    let shared: Vec<_> = shared.map(|((own, name), files)| format!("{own}: {name}: {}", files.join(", "))).collect();
    none(&shared, "public types of a crate have names of their own");
}

#[test]
fn only_public_types_count() {
    let text = "pub struct A; struct B; pub(crate) enum C {} pub type D = A; mod m { pub trait E {} }
        #[cfg(test)] mod tests { pub struct F; } #[cfg(test)] pub struct G; impl A { pub fn h() {} }";
    assert_eq!(types(&syntax(text)), ["A", "D", "E"]);
}
