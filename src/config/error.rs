//! What is wrong with a configuration, and where.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Everything that is wrong; never empty. Displayed as one paragraph for each error.
#[derive(Debug)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// `Err` if there are any.
    pub(super) fn check(errors: Vec<ConfigError>) -> Result<(), Self> {
        if errors.is_empty() { Ok(()) } else { Err(Self(errors)) }
    }

    /// The errors in the order of the files, then of the variables.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
            let mut cause = std::error::Error::source(error);
            while let Some(error) = cause {
                write!(f, ": {error}")?;
                cause = error.source();
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// One thing that is wrong. Each text ends with the mend.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file or `conf.d` cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is no TOML.
    #[error("{place}: {message}{}", place.excerpt())]
    Syntax {
        /// Where the reader stumbled.
        place: Place,
        /// What it says.
        message: String,
    },
    /// A key that nobody knows.
    #[error("{place}: unknown key {key:?} in {table}; {mend}{}", place.excerpt())]
    UnknownKey {
        /// Where.
        place: Place,
        /// The key as written.
        key: String,
        /// Its table, as in `[broker]` or `[[source]]`.
        table: String,
        /// The nearest known name, or all of them.
        mend: String,
    },
    /// A variable that nobody knows.
    #[error("unknown environment variable {name}; {mend}")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The nearest known name.
        mend: String,
    },
    /// A value of the wrong type or unit, out of its bounds, or at odds with another one; or a key that is missing.
    #[error("{place}: {key} {message}{}", place.excerpt())]
    Value {
        /// Where; the table if the key is missing.
        place: Place,
        /// The key with its tables: `broker.listen`, `source[0].topic`.
        key: String,
        /// What is wrong with it, and the mend.
        message: String,
    },
    /// A name that is there twice.
    #[error(
        "{second}: {what} {name:?} is already at {first}; give one of them another name or remove it{}",
        second.excerpt()
    )]
    Twice {
        /// `alert` or `sink`.
        what: &'static str,
        /// The name.
        name: String,
        /// The first place.
        first: Place,
        /// The second place.
        second: Place,
    },
    /// The layers are good by themselves and do not fit together: a mistake in this program.
    #[error("the layers of the configuration cannot be merged; please report it with the files")]
    Merge {
        /// What the merge says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File(Box<FilePlace>),
    /// An environment variable.
    Variable(String),
    /// Nowhere in files or environment: a default, or made by a program.
    BuiltIn,
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlace {
    /// The file as it was named.
    pub path: PathBuf,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The line itself, shortened.
    pub text: String,
    /// Characters to mark.
    pub width: usize,
}

/// Longest line that is shown, in characters.
const EXCERPT_CHARS_MAX: usize = 160;

impl Place {
    /// The place of a byte range in a file.
    pub(super) fn in_file(path: &Path, text: &str, span: &Range<usize>) -> Self {
        let start = floor_boundary(text, span.start);
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line = text.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
        let column = before.get(line_start..).unwrap_or_default().chars().count();
        let marked = text.get(start..floor_boundary(text, span.end)).unwrap_or_default();
        let width = marked.lines().next().unwrap_or_default().chars().count().max(1);
        let shown: String =
            line.chars().take(EXCERPT_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self::File(Box::new(FilePlace {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: column + 1,
            width: width.min(EXCERPT_CHARS_MAX.saturating_sub(column).max(1)),
            text: shown,
        }))
    }

    /// The line with a mark below it, on lines of their own; empty if there is none.
    fn excerpt(&self) -> String {
        match self {
            Self::File(file) if file.column <= EXCERPT_CHARS_MAX => {
                let (number, text) = (file.line.to_string(), &file.text);
                let gap = " ".repeat(number.len());
                let mark = format!("{}{}", " ".repeat(file.column - 1), "^".repeat(file.width));
                format!("\n  {number} | {text}\n  {gap} | {mark}")
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}:{}:{}", file.path.display(), file.line, file.column),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::BuiltIn => f.write_str("configuration"),
        }
    }
}

/// The mend for a name that is not known: the nearest of `known`, or all.
pub(super) fn mend_name(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("known are {}", known.join(", ")),
    }
}

/// The known name that `name` was most likely meant to be: at most a third of its letters differ, or one begins with
/// the other.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let folded = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let name = folded(name);
    let best = known.iter().map(|candidate| (distance(&name, &folded(candidate)), *candidate)).min()?;
    if best.0 <= (name.chars().count() / 3).max(1) {
        return Some(best.1);
    }
    let begins = |candidate: &&&str| name.len() >= 3 && (candidate.starts_with(&name) || name.starts_with(**candidate));
    known.iter().find(begins).copied()
}

/// Letters to insert, delete, replace or swap with their neighbour until `a` is `b`. Names beyond 64 letters are not
/// compared.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let replace = at(&last, j) + usize::from(x != y);
            let mut least = replace.min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                least = least.min(at(&before, j - 1) + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

/// The last character boundary at or before `index`.
fn floor_boundary(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index -= 1;
    }
    index
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_within_a_third_of_the_letters() {
        let known = ["listen", "anonymous", "connections_max", "for"];
        for (typed, meant) in [
            ("lisen", Some("listen")),
            ("litsen", Some("listen")),
            ("LISTEN", Some("listen")),
            ("connections-max", Some("connections_max")),
            ("conection_max", Some("connections_max")),
            ("four", Some("for")),
            ("connections", Some("connections_max")),
            ("tls", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, &known), meant, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(5000), &known), None);
    }

    #[test]
    fn a_place_counts_lines_and_characters_from_one() {
        let text = "a = 1\nü = \"é\" # x\n";
        let start = text.find('é').expect("is there");
        let place = Place::in_file(Path::new("t.toml"), text, &(start..start + 2));
        assert_eq!(place.to_string(), "t.toml:2:6");
        assert_eq!(place.excerpt(), "\n  2 | ü = \"é\" # x\n    |      ^");
    }

    #[test]
    fn a_place_beyond_the_text_or_inside_a_character_does_not_panic() {
        for (start, end) in [(0, 0), (1, 9), (99, 100), (2, 1)] {
            let place = Place::in_file(Path::new("t"), "é\n", &Range { start, end });
            assert!(place.to_string().starts_with("t:"), "{place}");
        }
    }
}
