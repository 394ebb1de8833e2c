//! Lists of names that the engine owns, as texts for the keys: names of policies, controllers and hints.
//!
//! Owns the way from a list to the text of a range. Never has a name of its own. Invariant: a text is made while the
//! program is compiled, from the list itself, so that the two cannot differ.

/// The bytes of what [`joined`] makes.
pub(super) const fn joined_bytes(names: &[&str]) -> usize {
    let (mut bytes, mut n) = (0, 0);
    while n < names.len() {
        bytes += names[n].len() + if n == 0 { 2 } else { 4 };
        n += 1;
    }
    bytes
}

/// The names in backticks, with commas between.
pub(super) const fn joined<const BYTES: usize>(names: &[&str]) -> [u8; BYTES] {
    let mut text = [b'`'; BYTES];
    let (mut at, mut n) = (0, 0);
    while n < names.len() {
        if n > 0 {
            text[at] = b',';
            text[at + 1] = b' ';
            at += 2;
        }
        let (name, mut i) = (names[n].as_bytes(), 0);
        while i < name.len() {
            text[at + 1 + i] = name[i];
            i += 1;
        }
        at += name.len() + 2;
        n += 1;
    }
    text
}

/// The names of a type that has `ALL` and a constant `name`, as the range of a key: `` `fifo`, `lru` ``.
macro_rules! names {
    ($kind:ty) => {{
        const NAMES: [&str; <$kind>::ALL.len()] = {
            let mut names = [""; <$kind>::ALL.len()];
            let mut n = 0;
            while n < names.len() {
                names[n] = <$kind>::ALL[n].name();
                n += 1;
            }
            names
        };
        const TEXT: [u8; $crate::keys::words::joined_bytes(&NAMES)] = $crate::keys::words::joined(&NAMES);
        match std::str::from_utf8(&TEXT) {
            Ok(text) => text,
            Err(_) => panic!("names are text"),
        }
    }};
}
pub(super) use names;

#[cfg(test)]
mod tests {
    use undercroft_engine::PolicyKind;
    use undercroft_engine::control::ControllerKind;

    #[test]
    fn a_list_of_names_reads_as_it_would_be_written() {
        const POLICIES: &str = names!(PolicyKind);
        let by_hand: Vec<_> = PolicyKind::ALL.iter().map(|kind| format!("`{kind}`")).collect();
        assert_eq!(POLICIES, by_hand.join(", "));
        const CONTROLLERS: &str = names!(ControllerKind);
        assert_eq!(CONTROLLERS, "`static`, `donor`, `utility`, `target`, `paper`");
    }
}
