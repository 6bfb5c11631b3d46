//! Dotted paths of fields in a JSON payload.

use std::fmt;
use std::sync::Arc;

/// A dotted path in a JSON payload: `AM2301.Temperature`, `"switch:0".apower`, `rx.0.rssi`.
///
/// It is kept as the joined name, as a flattened payload names its fields. So `a.b` is the field `b` in the object `a`,
/// and also the field `"a.b"`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldPath(Arc<str>);

/// Why a text is no path; each ends with the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing there, or too much.
    #[error("has {0} bytes, 1 to {PATH_BYTES_MAX} are allowed; shorten it")]
    Length(usize),
    /// Nothing between two dots.
    #[error("has an empty part; remove a dot")]
    Empty,
    /// A quote that is not closed, or in the middle of a part.
    #[error("has an odd quote; put the whole part into quotes, as in \"switch:0\".apower")]
    Quote,
}

/// Longest path in bytes.
const PATH_BYTES_MAX: usize = 512;

impl FieldPath {
    /// Reads a path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() || text.len() > PATH_BYTES_MAX {
            return Err(PathError::Length(text.len()));
        }
        let mut joined = String::with_capacity(text.len());
        let mut rest = text;
        loop {
            let (part, tail) = next_part(rest)?;
            joined.push_str(part);
            match tail {
                Some(tail) => {
                    joined.push('.');
                    rest = tail;
                }
                None => return Ok(Self(joined.into())),
            }
        }
    }

    /// The joined name, without quotes.
    pub fn name(&self) -> &Arc<str> {
        &self.0
    }
}

/// The first part of `text` and what follows its dot.
fn next_part(text: &str) -> Result<(&str, Option<&str>), PathError> {
    let (part, tail) = if let Some(quoted) = text.strip_prefix('"') {
        let (part, tail) = quoted.split_once('"').ok_or(PathError::Quote)?;
        match tail.strip_prefix('.') {
            Some(tail) => (part, Some(tail)),
            None if tail.is_empty() => (part, None),
            None => return Err(PathError::Quote),
        }
    } else {
        text.split_once('.').map_or((text, None), |(part, tail)| (part, Some(tail)))
    };
    if part.is_empty() {
        return Err(PathError::Empty);
    }
    if part.contains('"') { Err(PathError::Quote) } else { Ok((part, tail)) }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_with_and_without_quotes() {
        for (text, name) in [
            ("temperature", "temperature"),
            ("AM2301.Temperature", "AM2301.Temperature"),
            ("\"switch:0\".apower", "switch:0.apower"),
            ("twin.\" value\"", "twin. value"),
            ("a.\"b.c\".0", "a.b.c.0"),
        ] {
            assert_eq!(&**FieldPath::parse(text).unwrap().name(), name);
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for (text, wanted) in [
            ("", PathError::Length(0)),
            (".", PathError::Empty),
            ("a..b", PathError::Empty),
            ("a.", PathError::Empty),
            ("\"\"", PathError::Empty),
            ("\"a", PathError::Quote),
            ("\"a\"b", PathError::Quote),
            ("a\"b\"", PathError::Quote),
        ] {
            assert_eq!(FieldPath::parse(text), Err(wanted), "{text}");
        }
        assert_eq!(FieldPath::parse(&"x".repeat(513)), Err(PathError::Length(513)));
    }
}
