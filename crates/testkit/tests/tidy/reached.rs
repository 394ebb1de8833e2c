//! What crates offer is taken: every public item is named by another crate, or by a test, example or fuzz target.
//!
//! Owns a check by names, so one that is as common as `new` is always found. Never looks at fields, trait methods or
//! what macros make. Invariant: an item counts as offered only where its path is public, from the root of its crate or
//! by a re-export; what a reached item mentions in its signature is reached, too.

use super::modules::module;
use super::parsed::{Parsed, of_all, syntax};
use super::source::{for_tests, uses};
use super::tokens::identifiers;
use super::{none, root, rust};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use syn::visit::{self, Visit};

/// One item that a crate offers.
struct Offered {
    /// Its name, after that of its type if it is a method.
    shown: String,
    name: String,
    /// What its signature mentions.
    mentions: BTreeSet<String>,
}

/// Collects the names in types.
#[derive(Default)]
struct Mentions(BTreeSet<String>);

impl<'ast> Visit<'ast> for Mentions {
    fn visit_path(&mut self, p: &'ast syn::Path) {
        self.0.extend(p.segments.iter().map(|s| s.ident.to_string()));
        visit::visit_path(self, p);
    }

    fn visit_block(&mut self, _: &'ast syn::Block) {}

    fn visit_expr(&mut self, _: &'ast syn::Expr) {}
}

fn mentioned(visit: impl FnOnce(&mut Mentions)) -> BTreeSet<String> {
    let mut found = Mentions::default();
    visit(&mut found);
    found.0
}

fn is_public(v: &syn::Visibility) -> bool {
    matches!(v, syn::Visibility::Public(_))
}

/// What a crate offers, being read.
#[derive(Default)]
struct Crate {
    /// Items declared `pub`, by module.
    items: Vec<(Vec<String>, Offered)>,
    /// Methods declared `pub`, by the type's name.
    methods: Vec<(String, Offered)>,
    /// What traits that are implemented say of types: a type to what its associated types mention.
    associated: Vec<(String, BTreeSet<String>)>,
    /// Constants declared `pub`: bounds that a reader may want to know. They count as reached if they are named at all.
    constants: Vec<(String, BTreeSet<String>)>,
    /// Modules declared `pub`.
    open: BTreeSet<Vec<String>>,
    /// Last names of `pub use`, and modules of which everything is re-exported.
    exported: BTreeSet<String>,
    globs: BTreeSet<String>,
}

impl Crate {
    fn read(&mut self, at: &[String], items: &[syn::Item]) {
        for item in items {
            let mut offer = |name: &syn::Ident, mentions| {
                let name = name.to_string();
                self.items.push((at.to_vec(), Offered { shown: name.clone(), name, mentions }));
            };
            match item {
                syn::Item::Fn(i) if is_public(&i.vis) && !for_tests(&i.attrs) => {
                    offer(&i.sig.ident, mentioned(|m| m.visit_signature(&i.sig)));
                }
                syn::Item::Struct(i) if is_public(&i.vis) && !for_tests(&i.attrs) => {
                    offer(
                        &i.ident,
                        mentioned(|m| {
                            m.visit_generics(&i.generics);
                            i.fields.iter().filter(|f| is_public(&f.vis)).for_each(|f| m.visit_type(&f.ty));
                        }),
                    );
                }
                syn::Item::Enum(i) if is_public(&i.vis) && !for_tests(&i.attrs) => {
                    offer(&i.ident, mentioned(|m| i.variants.iter().for_each(|v| m.visit_fields(&v.fields))));
                }
                syn::Item::Trait(i) if is_public(&i.vis) && !for_tests(&i.attrs) => {
                    offer(&i.ident, mentioned(|m| m.visit_item_trait(i)));
                }
                syn::Item::Type(i) if is_public(&i.vis) => offer(&i.ident, mentioned(|m| m.visit_type(&i.ty))),
                syn::Item::Const(i) if is_public(&i.vis) && !for_tests(&i.attrs) => {
                    self.constants.push((i.ident.to_string(), mentioned(|m| m.visit_type(&i.ty))));
                }
                syn::Item::Static(i) if is_public(&i.vis) => offer(&i.ident, mentioned(|m| m.visit_type(&i.ty))),
                syn::Item::Use(i) if is_public(&i.vis) => self.reexports(&i.tree),
                syn::Item::Impl(i) if !for_tests(&i.attrs) => self.read_impl(i),
                syn::Item::Mod(i) if !for_tests(&i.attrs) => {
                    let mut below = at.to_vec();
                    below.push(i.ident.to_string());
                    if is_public(&i.vis) {
                        self.open.insert(below.clone());
                    }
                    if let Some((_, items)) = &i.content {
                        self.read(&below, items);
                    }
                }
                _ => {}
            }
        }
    }

    fn reexports(&mut self, tree: &syn::UseTree) {
        uses(tree, &mut Vec::new(), &mut |path| {
            self.exported.extend(path.last().cloned());
        });
        glob_of(tree, None, &mut self.globs);
    }

    fn read_impl(&mut self, i: &syn::ItemImpl) {
        let syn::Type::Path(own) = &*i.self_ty else { return };
        let Some(own) = own.path.segments.last().map(|s| s.ident.to_string()) else { return };
        if i.trait_.is_some() {
            let types = i.items.iter().filter_map(|i| if let syn::ImplItem::Type(t) = i { Some(&t.ty) } else { None });
            self.associated.push((own, mentioned(|m| types.for_each(|t| m.visit_type(t)))));
            return;
        }
        for item in &i.items {
            let (name, mentions) = match item {
                syn::ImplItem::Fn(f) if is_public(&f.vis) && !for_tests(&f.attrs) => {
                    (f.sig.ident.to_string(), mentioned(|m| m.visit_signature(&f.sig)))
                }
                syn::ImplItem::Const(c) if is_public(&c.vis) => {
                    (c.ident.to_string(), mentioned(|m| m.visit_type(&c.ty)))
                }
                _ => continue,
            };
            self.methods.push((own.clone(), Offered { shown: format!("{own}::{name}"), name, mentions }));
        }
    }

    /// What can be reached from outside by its path.
    fn offered(&self) -> Vec<&Offered> {
        let is_open = |at: &[String]| {
            (1..=at.len()).all(|n| self.open.contains(&at[..n])) || at.last().is_some_and(|m| self.globs.contains(m))
        };
        let offered = self.items.iter().filter(|(at, i)| is_open(at) || self.exported.contains(&i.name));
        let mut offered: Vec<_> = offered.map(|(_, i)| i).collect();
        let types: BTreeSet<_> = offered.iter().map(|i| i.name.as_str()).collect();
        offered.extend(self.methods.iter().filter(|(own, _)| types.contains(own.as_str())).map(|(_, m)| m));
        offered
    }
}

/// Modules of which a `use` takes everything.
fn glob_of(tree: &syn::UseTree, of: Option<&syn::Ident>, found: &mut BTreeSet<String>) {
    match tree {
        syn::UseTree::Path(p) => glob_of(&p.tree, Some(&p.ident), found),
        syn::UseTree::Group(g) => g.items.iter().for_each(|t| glob_of(t, of, found)),
        syn::UseTree::Glob(_) => found.extend(of.map(ToString::to_string)),
        _ => {}
    }
}

/// The items of a crate that are not reached by any of `names`, nor by the signature of one that is.
fn unreached(own: &Crate, names: &BTreeSet<String>) -> Vec<String> {
    let offered = own.offered();
    let mut reached = BTreeSet::new();
    let mut names = names.clone();
    let constants = own.constants.iter().filter(|(name, _)| names.contains(name));
    let of_constants: Vec<_> = constants.flat_map(|(_, m)| m.iter().cloned()).collect();
    names.extend(of_constants);
    loop {
        let before = (reached.len(), names.len());
        for (n, item) in offered.iter().enumerate() {
            if names.contains(&item.name) && reached.insert(n) {
                names.extend(item.mentions.iter().cloned());
            }
        }
        let more = own.associated.iter().filter(|(own, _)| names.contains(own));
        let more: Vec<_> = more.flat_map(|(_, m)| m.iter().cloned()).collect();
        names.extend(more);
        if before == (reached.len(), names.len()) {
            break;
        }
    }
    offered.iter().enumerate().filter(|(n, _)| !reached.contains(n)).map(|(_, i)| i.shown.clone()).collect()
}

/// What crates offer (those that are libraries), and what is named outside of each one's sources.
fn read() -> &'static [(String, Crate, BTreeSet<String>)] {
    static READ: OnceLock<Vec<(String, Crate, BTreeSet<String>)>> = OnceLock::new();
    READ.get_or_init(read_all)
}

fn read_all() -> Vec<(String, Crate, BTreeSet<String>)> {
    let named: Vec<_> = rust(&root())
        .into_iter()
        .map(|(file, _)| (library_of(&file).map(|(own, _)| own.to_string()), &identifiers(&file)[1]))
        .collect();
    let outside = |own: &String| {
        let others = named.iter().filter(|(of, _)| of.as_ref() != Some(own));
        others.flat_map(|(_, names)| names.keys().cloned()).collect::<BTreeSet<_>>()
    };
    let crates = of_all(offers).into_iter();
    crates
        .map(|(name, own)| {
            let names = outside(&name);
            (name, own, names)
        })
        .collect()
}

/// The crate that a file is a source of, and its place there. What a crate's own program names is offered to it by the
/// library beside it.
fn library_of(file: &str) -> Option<(&str, &str)> {
    let source = file.strip_prefix("crates/").and_then(|f| f.split_once("/src/"));
    source.filter(|(_, below)| !below.starts_with("bin/") && *below != "main.rs")
}

/// What crates offer, those that are libraries.
fn offers(files: &[Parsed]) -> BTreeMap<String, Crate> {
    let mut crates = BTreeMap::<String, Crate>::new();
    for f in files.iter().filter(|f| !f.is_test) {
        let Some((own, below)) = library_of(&f.file) else { continue };
        if files.iter().any(|f| f.file == format!("crates/{own}/src/lib.rs")) {
            crates.entry(own.to_string()).or_default().read(&module(below), &f.syntax.items);
        }
    }
    crates
}

/// How often each name stands in all of the source.
fn counts() -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for (file, _) in rust(&root()) {
        identifiers(&file)[1].iter().for_each(|(name, n)| *all.entry(name.clone()).or_default() += n);
    }
    all
}

#[test]
fn what_crates_offer_is_taken() {
    let counts = counts();
    let mut found = Vec::new();
    for (name, own, names) in read() {
        // Python takes what it takes by attributes; a program offers nothing.
        if name == "python" {
            continue;
        }
        let unused: Vec<_> = own.constants.iter().filter(|(c, _)| counts[c] < 2).map(|(c, _)| c.clone()).collect();
        let left = [unused, unreached(own, names)].concat();
        if !left.is_empty() {
            found.push(format!("{name}: {}", left.join(", ")));
        }
    }
    none(&found, "public items that nobody outside of their crate's sources names: narrow them");
}

/// Public items of each crate, for the table of sizes.
pub fn public_items() -> BTreeMap<String, usize> {
    read().iter().map(|(name, own, _)| (name.clone(), own.offered().len() + own.constants.len())).collect()
}

#[test]
fn what_is_not_taken_is_seen() {
    let of = |text: &str, names: &[&str]| {
        let mut own = Crate::default();
        own.read(&[], &syntax(text).items);
        unreached(&own, &names.iter().map(ToString::to_string).collect())
    };
    assert_eq!(of("pub fn a() {} pub fn b() {}", &["a"]), ["b"]);
    assert_eq!(of("pub fn a() -> B {} pub struct B;", &["a"]), [""; 0]);
    assert_eq!(of("mod m { pub fn hidden() {} pub fn shown() {} } pub use m::shown;", &[]), ["shown"]);
    assert_eq!(of("pub struct A; impl A { pub fn b(&self) {} }", &["A"]), ["A::b"]);
    assert_eq!(of("#[cfg(test)] pub fn a() {}", &[]), [""; 0]);
    assert_eq!(of("pub const A: B = B; pub struct B;", &["A"]), [""; 0]);
    assert_eq!(of("pub struct A<T: B>(T); pub trait B {}", &["A"]), [""; 0]);
}
