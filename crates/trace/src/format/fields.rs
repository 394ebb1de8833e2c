//! Fields of lines and records as numbers, without a detour through strings.
//!
//! Owns the parsing of numbers. Invariant: a number that does not fit is none; nothing is rounded silently but
//! fractions of the smallest unit.

use crate::damage::Damage;

/// Nanoseconds of larger units of time.
pub(super) const NS_PER_US: u64 = 1_000;
pub(super) const NS_PER_MS: u64 = 1_000_000;
pub(super) const NS_PER_S: u64 = 1_000_000_000;

/// The little-endian u16 at a place of a record that is long enough.
#[inline]
pub(super) fn u16_at(r: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([r[at], r[at + 1]])
}

/// The little-endian u32.
#[inline]
pub(super) fn u32_at(r: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(r[at..at + 4].try_into().expect("4 bytes"))
}

/// The little-endian u64.
#[inline]
pub(super) fn u64_at(r: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(r[at..at + 8].try_into().expect("8 bytes"))
}

/// A decimal number.
#[inline]
pub(super) fn decimal(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    let mut n = 0u64;
    for &c in field {
        let digit = c.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n = n.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(n)
}

/// A hexadecimal number, with or without 0x.
pub(super) fn hexadecimal(field: &[u8]) -> Option<u64> {
    let digits = field.strip_prefix(b"0x").unwrap_or(field);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, &c| Some(n.checked_mul(16)? | u64::from((c as char).to_digit(16)?)))
}

/// Decimal, or hexadecimal after 0x.
pub(super) fn any_base(field: &[u8]) -> Option<u64> {
    if field.starts_with(b"0x") { hexadecimal(field) } else { decimal(field) }
}

/// A decimal number with a fraction, in parts of 1/`unit`; what is smaller is cut off. `unit` is at most 10^9 times a
/// small number.
pub(super) fn fixed_point(field: &[u8], unit: u64) -> Option<u64> {
    let Some(point) = field.iter().position(|&c| c == b'.') else { return decimal(field)?.checked_mul(unit) };
    let whole = if point == 0 { 0 } else { decimal(&field[..point])? };
    let mut sum = u128::from(whole) * u128::from(unit);
    let (mut numerator, mut denominator) = (0u128, 1u128);
    for &c in &field[point + 1..] {
        let digit = c.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        if denominator < 1_000_000_000_000_000_000 {
            numerator = numerator * 10 + u128::from(digit);
            denominator *= 10;
        }
    }
    sum += numerator * u128::from(unit) / denominator;
    u64::try_from(sum).ok()
}

/// `of` a field that has a name, or what is wrong with it.
#[inline]
pub(super) fn number(field: &[u8], what: &'static str, of: impl Fn(&[u8]) -> Option<u64>) -> Result<u64, Damage> {
    of(field).ok_or_else(|| no_number(field, what))
}

#[cold]
fn no_number(found: &[u8], field: &'static str) -> Damage {
    let too_large = is_number_too_large(found);
    let found = shown(found);
    if too_large { Damage::TooLarge { field, found } } else { Damage::NotANumber { field, found } }
}

/// Whether it is written like a number (decimal, with a fraction, or hexadecimal after 0x): what could not be read as
/// one is too large then.
pub(super) fn is_number_too_large(field: &[u8]) -> bool {
    let all = |digits: &[u8], of: fn(&u8) -> bool| !digits.is_empty() && digits.iter().all(of);
    if let Some(digits) = field.strip_prefix(b"0x") {
        return all(digits, u8::is_ascii_hexdigit) && hexadecimal(field).is_none();
    }
    let whole = field.iter().position(|&c| c == b'.').unwrap_or(field.len());
    let fraction = field.get(whole + 1..).unwrap_or_default();
    // what fits by itself may be too many of the smallest unit
    all(&field[..whole], u8::is_ascii_digit)
        && fraction.iter().all(u8::is_ascii_digit)
        && decimal(&field[..whole]).is_none_or(|n| n > 1 << 32)
}

/// Damage as a message can show it.
pub(super) fn shown(field: &[u8]) -> String {
    let cut = &field[..field.len().min(60)];
    format!("{}{}", cut.escape_ascii(), if cut.len() < field.len() { "..." } else { "" })
}

/// Words between blanks.
#[inline]
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty())
}

/// The first `N` fields between separators, without blanks around them; `None` if there are fewer.
#[inline]
pub(super) fn fields<const N: usize>(line: &[u8], separator: u8) -> Option<[&[u8]; N]> {
    let mut all = line.split(|&c| c == separator);
    let mut found = [&line[..0]; N];
    for f in &mut found {
        *f = all.next()?.trim_ascii();
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_exactly_or_not_at_all() {
        assert_eq!((decimal(b"18446744073709551615"), decimal(b"18446744073709551616")), (Some(u64::MAX), None));
        assert_eq!((decimal(b""), decimal(b"-1"), decimal(b"1 ")), (None, None, None));
        assert_eq!((hexadecimal(b"0x1fF"), hexadecimal(b"g"), hexadecimal(b"0x")), (Some(0x1ff), None, None));
        assert_eq!(fixed_point(b"1.000000001", 1_000_000_000), Some(1_000_000_001));
        assert_eq!(fixed_point(b".5", 1000), Some(500));
        assert_eq!(fixed_point(b"2.9999999999", 1), Some(2));
        assert_eq!(fixed_point(b"0.1234567890123456789012345678", 1_000_000_000), Some(123_456_789));
        assert_eq!((fixed_point(b"1.2.3", 1), fixed_point(b"18446744073709551615.0", 10)), (None, None));
    }
}
