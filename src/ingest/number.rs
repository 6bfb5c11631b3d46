//! Numbers as devices write them: a full match or no number.
//!
//! | payload | read as |
//! |---|---|
//! | `23.9`, `-0.5`, `+5`, `.5`, `5.`, `007`, `1e3`, ` 7\n` | the number |
//! | `9007199254740993`, `18446744073709551615` | the whole number, exact |
//! | `18446744073709551616`, `1e400` | text, uncertain, `lossy`: no number of 64 bits holds it |
//! | `NaN`, `nan`, `-inf`, `Infinity` | no value, bad, `not finite` |
//! | `23,9`, `-0,5`, `,5`, `1.016,76`, `1 016,76` | text, bad, `decimal comma?` |
//! | `1,000` | text, bad, `decimal comma or thousands?` |
//! | `1,016.76`, `1,000,000` | text, bad, `thousands separator?` |
//! | `5,` | text, bad, `not a number` |
//! | `0x10`, `23.9 °C`, `1/2`, `1.2.3`, `1,2,3`, digits of other scripts | text |

use crate::model::Value;

/// No number of 64 bits holds the value; its text does.
pub(super) const LOSSY: &str = "lossy";
/// NaN or infinity.
pub(super) const NOT_FINITE: &str = "not finite";
/// No number where one is wanted.
pub(super) const NOT_A_NUMBER: &str = "not a number";
/// Most likely a decimal comma.
const DECIMAL_COMMA: &str = "decimal comma?";
/// Three digits behind one comma.
const AMBIGUOUS: &str = "decimal comma or thousands?";
/// Groups of three digits.
const THOUSANDS: &str = "thousands separator?";

/// What a bare text is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Bare {
    /// A number.
    Number(Value),
    /// A number that 64 bits cannot hold.
    Lossy,
    /// NaN or infinity.
    NotFinite,
    /// Almost a number: why it is not taken for one.
    Doubtful(&'static str),
    /// Something else.
    Text,
}

/// Reads a text without blanks at its ends.
pub(super) fn bare(text: &str) -> Bare {
    match shape(text, Grammar::Bare) {
        Some(shape) => value(text, shape).map_or(Bare::Lossy, Bare::Number),
        None if is_not_finite(text) => Bare::NotFinite,
        None => doubt(text).map_or(Bare::Text, Bare::Doubtful),
    }
}

/// Reads a number of a JSON text: a number, one that is lossy, or else text.
pub(super) fn json(text: &str) -> Bare {
    shape(text, Grammar::Json).map_or(Bare::Text, |shape| value(text, shape).map_or(Bare::Lossy, Bare::Number))
}

/// True if the text is a number as JSON has it.
pub(super) fn is_json(text: &str) -> bool {
    shape(text, Grammar::Json).is_some()
}

/// True for NaN and infinity with or without a sign, in any case.
pub(super) fn is_not_finite(text: &str) -> bool {
    let word = text.strip_prefix(['+', '-']).unwrap_or(text);
    ["nan", "inf", "infinity"].iter().any(|name| word.eq_ignore_ascii_case(name))
}

#[derive(Clone, Copy, PartialEq)]
enum Grammar {
    /// RFC 8259.
    Json,
    /// Also with a plus, leading zeros, and a dot at either end.
    Bare,
}

#[derive(Clone, Copy)]
enum Shape {
    Whole,
    Fraction,
}

/// The shape of a number that fills the text.
fn shape(text: &str, grammar: Grammar) -> Option<Shape> {
    let unsigned = match grammar {
        Grammar::Json => text.strip_prefix('-'),
        Grammar::Bare => text.strip_prefix(['-', '+']),
    };
    let (before, rest) = digits(unsigned.unwrap_or(text));
    let (after, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let (after, rest) = digits(rest);
            (Some(after), rest)
        }
        None => (None, rest),
    };
    let digits_good = match grammar {
        Grammar::Bare => before + after.unwrap_or(0) > 0,
        Grammar::Json => {
            let leading_zero = before > 1 && unsigned.unwrap_or(text).starts_with('0');
            before > 0 && !leading_zero && after != Some(0)
        }
    };
    if !digits_good {
        return None;
    }
    match rest.strip_prefix(['e', 'E']) {
        Some(exponent) => {
            let (count, rest) = digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent));
            (count > 0 && rest.is_empty()).then_some(Shape::Fraction)
        }
        None if !rest.is_empty() => None,
        None => Some(if after.is_none() { Shape::Whole } else { Shape::Fraction }),
    }
}

/// How many ASCII digits the text begins with, and what follows.
fn digits(text: &str) -> (usize, &str) {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (text.len() - rest.len(), rest)
}

fn value(text: &str, shape: Shape) -> Option<Value> {
    match shape {
        Shape::Whole => text.parse().map(Value::I64).or_else(|_| text.parse().map(Value::U64)).ok(),
        Shape::Fraction => text.parse().ok().filter(|number: &f64| number.is_finite()).map(Value::F64),
    }
}

/// Why a text of digits and separators is not taken for a number; none if it is not like one.
fn doubt(text: &str) -> Option<&'static str> {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let group = |c: char| matches!(c, '.' | ',' | ' ' | '\u{a0}' | '\u{202f}' | '\'');
    if text.len() > 40 || !text.contains(',') || !text.chars().all(|c| c.is_ascii_digit() || group(c)) {
        return None;
    }
    let (whole, last) = text.rsplit_once(',')?;
    if last.is_empty() && !whole.contains(group) && !whole.is_empty() {
        return Some(NOT_A_NUMBER);
    }
    let number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    if number(last) && (whole.is_empty() || number(whole)) {
        let thousands = last.len() == 3 && (1..=3).contains(&whole.len()) && !whole.starts_with('0');
        return Some(if thousands { AMBIGUOUS } else { DECIMAL_COMMA });
    }
    if number(last) && is_grouped(whole, &['.', ' ', '\u{a0}', '\u{202f}', '\'']) {
        return Some(DECIMAL_COMMA);
    }
    let whole = match text.split_once('.') {
        Some((whole, fraction)) if number(fraction) => whole,
        Some(_) => return None,
        None => text,
    };
    is_grouped(whole, &[',']).then_some(THOUSANDS)
}

/// Two or more groups of digits, all but the first of three.
fn is_grouped(text: &str, separators: &[char]) -> bool {
    let mut groups = text.split(separators);
    let first = groups.next().unwrap_or_default();
    let digits = |group: &str| group.chars().all(|c| c.is_ascii_digit());
    let mut count = 0;
    let rest = groups.inspect(|_| count += 1).all(|group| group.len() == 3 && digits(group));
    rest && count > 0 && (1..=3).contains(&first.len()) && digits(first)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_a_full_match_or_none() {
        let f = |number: f64| Bare::Number(Value::F64(number));
        let i = |number: i64| Bare::Number(Value::I64(number));
        for (text, wanted) in [
            ("23.9", f(23.9)),
            ("-0.5", f(-0.5)),
            ("+5", i(5)),
            (".5", f(0.5)),
            ("5.", f(5.0)),
            ("007", i(7)),
            ("1e3", f(1000.0)),
            ("1E-3", f(0.001)),
            ("-0", i(0)),
            ("9007199254740993", i(9_007_199_254_740_993)),
            ("18446744073709551615", Bare::Number(Value::U64(u64::MAX))),
            ("18446744073709551616", Bare::Lossy),
            ("-9223372036854775809", Bare::Lossy),
            ("1e400", Bare::Lossy),
            ("NaN", Bare::NotFinite),
            ("-inf", Bare::NotFinite),
            ("INFINITY", Bare::NotFinite),
            ("23,9", Bare::Doubtful(DECIMAL_COMMA)),
            ("-0,5", Bare::Doubtful(DECIMAL_COMMA)),
            (",5", Bare::Doubtful(DECIMAL_COMMA)),
            ("0,123", Bare::Doubtful(DECIMAL_COMMA)),
            ("1000,123", Bare::Doubtful(DECIMAL_COMMA)),
            ("1.016,76", Bare::Doubtful(DECIMAL_COMMA)),
            ("1\u{a0}016,76", Bare::Doubtful(DECIMAL_COMMA)),
            ("1,000", Bare::Doubtful(AMBIGUOUS)),
            ("1,016.76", Bare::Doubtful(THOUSANDS)),
            ("1,000,000", Bare::Doubtful(THOUSANDS)),
            ("5,", Bare::Doubtful(NOT_A_NUMBER)),
            ("0x10", Bare::Text),
            ("23.9 °C", Bare::Text),
            ("23C", Bare::Text),
            ("1.2.3", Bare::Text),
            ("1,2,3", Bare::Text),
            ("21.5,22.1", Bare::Text),
            ("١٢", Bare::Text),
            ("1 2", Bare::Text),
            ("1e", Bare::Text),
            ("e5", Bare::Text),
            ("-", Bare::Text),
            (".", Bare::Text),
            (",", Bare::Text),
            ("", Bare::Text),
        ] {
            assert_eq!(bare(text), wanted, "{text}");
        }
    }

    #[test]
    fn json_takes_its_own_grammar_only() {
        for text in ["0", "-0", "10", "1.5", "1e5", "0.5E+3"] {
            assert!(is_json(text), "{text}");
        }
        for text in ["+5", ".5", "5.", "01", "-", "1e", "", "0x1", "1 "] {
            assert!(!is_json(text), "{text}");
        }
        assert_eq!(json("18446744073709551616"), Bare::Lossy);
        assert_eq!(json("-5"), Bare::Number(Value::I64(-5)));
        assert_eq!(json("+5"), Bare::Text);
    }
}
