//! Every Rust file of the repository, parsed once for all tests: unoptimised, parsing is most of what they do.
//!
//! Owns the thread that has the parsed files, which must not leave it (`proc_macro2` counts references without locks).
//! Never judges. Invariant: a question sees all files, and must not ask another one.

use super::tests_only::{guarded, is_among};
use super::{root, rust};
use proc_macro2::TokenStream;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};

/// A file, parsed.
pub struct Parsed {
    pub file: String,
    pub tokens: TokenStream,
    pub syntax: syn::File,
    /// It is of tests, and not of a product.
    pub is_test: bool,
}

type Question = Box<dyn FnOnce(&[Parsed]) + Send>;

/// What `ask` says of all files, in the order of their names.
pub fn of_all<T: Send + 'static>(ask: impl FnOnce(&[Parsed]) -> T + Send + 'static) -> T {
    static QUESTIONS: OnceLock<Mutex<Sender<Question>>> = OnceLock::new();
    let questions = QUESTIONS.get_or_init(|| {
        let (to, questions) = channel();
        std::thread::spawn(move || answer(&questions));
        Mutex::new(to)
    });
    let (to, answer) = channel();
    let question = Box::new(move |files: &[Parsed]| _ = to.send(ask(files)));
    questions.lock().unwrap().send(question).expect("the files were read, and no question failed");
    answer.recv().expect("the files are read, and the question is answered")
}

fn answer(questions: &Receiver<Question>) {
    let mut files: Vec<_> = rust(&root()).into_iter().map(|(file, text)| read(file, &text)).collect();
    let of_products = files.iter().filter(|f| f.file.contains("/src/"));
    let guarded: BTreeSet<_> = of_products.flat_map(|f| guarded(&f.file, &f.syntax)).collect();
    for f in &mut files {
        f.is_test = is_among(&f.file, &guarded);
    }
    questions.iter().for_each(|ask| ask(&files));
}

fn read(file: String, text: &str) -> Parsed {
    let tokens = tokens(&file, text);
    let syntax = syn::parse2(tokens.clone()).unwrap_or_else(|e| panic!("{file}: {e}"));
    Parsed { file, tokens, syntax, is_test: false }
}

/// The tokens of a file, without the line that names its interpreter.
pub fn tokens(file: &str, text: &str) -> TokenStream {
    let text = if text.starts_with("#!/") { text.split_once('\n').map_or("", |(_, rest)| rest) } else { text };
    text.parse().unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The syntax of a text that is none of the files.
pub fn syntax(text: &str) -> syn::File {
    syn::parse_file(text).expect("Rust that compiles")
}
