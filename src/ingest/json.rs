//! A walk over a JSON text that hands each field to a visitor under its joined name, without building a tree.
//!
//! It takes RFC 8259, and in place of a number also `NaN` and `Infinity`, which devices write where a sensor is gone.
//! Numbers come as their text, so that none loses a digit. Depth, keys, names and strings are bounded; no input
//! panics.

use std::borrow::Cow;

use super::number;
use super::problem;

/// Deepest nesting.
const DEPTH_MAX: usize = 64;
/// Most keys and elements that are walked.
const KEYS_MAX: usize = 512;
/// Longest joined name in bytes.
const NAME_BYTES_MAX: usize = 1024;
/// Longest string in bytes, as written.
pub(super) const STRING_BYTES_MAX: usize = 64 << 10;
/// Most elements of an array that become fields of their own.
const ELEMENTS_MAX: usize = 16;

/// One value that is no object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar<'t> {
    /// `null`.
    Null,
    /// `NaN`, `Infinity` or the like, as written.
    NotFinite,
    /// `true` or `false`.
    Bool(bool),
    /// A number as written.
    Number(&'t str),
    /// A string.
    Text(Cow<'t, str>),
    /// An array as written that is not walked.
    Array(&'t str),
}

/// What is done with an object or an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Its syntax is checked, nothing in it is visited or counted.
    Skip,
    /// Each field or element is visited.
    Walk,
    /// As `Walk` for an object. An array of at most 16 values that are no objects and arrays is walked, another one
    /// is visited as a whole.
    Flat,
    /// As `Walk` for an object. An array is visited as a whole.
    Whole,
}

/// Takes what the walk finds. Names are joined by dots, elements of arrays are numbered from 0, the top is named "",
/// an empty key is named `""`.
pub(super) trait Visitor {
    /// An object or an array begins.
    fn enter(&mut self, name: &str) -> Way;

    /// A value.
    fn scalar(&mut self, name: &str, scalar: Scalar<'_>);
}

/// Walks a whole text; the error is one of [`problem`].
pub(super) fn walk(text: &str, visitor: &mut impl Visitor) -> Result<(), &'static str> {
    let mut walk = Walk { text, at: 0, name: String::new(), keys: 0, quiet: false, visitor };
    walk.value(0)?;
    walk.blanks();
    if walk.at == text.len() { Ok(()) } else { Err(problem::BAD_JSON) }
}

struct Walk<'t, 'v, V> {
    text: &'t str,
    at: usize,
    /// Joined name of the value that is read.
    name: String,
    keys: usize,
    /// Nothing is visited.
    quiet: bool,
    visitor: &'v mut V,
}

impl<'t, V: Visitor> Walk<'t, '_, V> {
    fn value(&mut self, depth: usize) -> Result<(), &'static str> {
        self.blanks();
        match self.peek() {
            Some(b'{' | b'[') => self.container(depth),
            Some(_) => {
                let scalar = self.scalar()?;
                if !self.quiet {
                    self.visitor.scalar(&self.name, scalar);
                }
                Ok(())
            }
            None => Err(problem::BAD_JSON),
        }
    }

    fn container(&mut self, depth: usize) -> Result<(), &'static str> {
        if depth == DEPTH_MAX {
            return Err(problem::TOO_DEEP);
        }
        let way = if self.quiet { Way::Skip } else { self.visitor.enter(&self.name) };
        let is_array = self.peek() == Some(b'[');
        match way {
            Way::Flat if is_array => self.array(depth, ELEMENTS_MAX),
            Way::Whole if is_array => self.array(depth, 0),
            Way::Skip => self.quietly(|walk| walk.members(depth)).map(|_| ()),
            Way::Walk | Way::Flat | Way::Whole => self.members(depth).map(|_| ()),
        }
    }

    /// Looks through the array first, then walks it or visits it as a whole.
    fn array(&mut self, depth: usize, elements_max: usize) -> Result<(), &'static str> {
        let start = self.at;
        let members = self.quietly(|walk| walk.members(depth))?;
        if members.flat && members.count <= elements_max {
            self.at = start;
            return self.members(depth).map(|_| ());
        }
        let written = self.text.get(start..self.at).unwrap_or_default();
        if written.len() > STRING_BYTES_MAX {
            return Err(problem::TOO_LARGE);
        }
        self.visitor.scalar(&self.name, Scalar::Array(written));
        Ok(())
    }

    fn quietly<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, &'static str>) -> Result<T, &'static str> {
        let before = std::mem::replace(&mut self.quiet, true);
        let result = read(self);
        self.quiet = before;
        result
    }

    /// The members of an object or the elements of an array, with their brackets.
    fn members(&mut self, depth: usize) -> Result<Members, &'static str> {
        let (close, is_object) = if self.peek() == Some(b'{') { (b'}', true) } else { (b']', false) };
        let length = self.name.len();
        let mut members = Members { count: 0, flat: true };
        self.at += 1;
        self.blanks();
        if self.take(close) {
            return Ok(members);
        }
        loop {
            if is_object {
                self.key()?;
            } else {
                self.push_name(&members.count.to_string())?;
            }
            self.blanks();
            members.flat &= !matches!(self.peek(), Some(b'{' | b'['));
            members.count += 1;
            self.value(depth + 1)?;
            self.name.truncate(length);
            self.blanks();
            if self.take(close) {
                return Ok(members);
            }
            self.expect(b',')?;
        }
    }

    fn key(&mut self) -> Result<(), &'static str> {
        self.blanks();
        let key = self.string()?;
        self.blanks();
        self.expect(b':')?;
        self.push_name(if key.is_empty() { "\"\"" } else { &key })
    }

    /// Joins a part to the name, and counts it.
    fn push_name(&mut self, part: &str) -> Result<(), &'static str> {
        if self.quiet {
            return Ok(());
        }
        self.keys += 1;
        if self.keys > KEYS_MAX {
            return Err(problem::TOO_MANY_KEYS);
        }
        if self.name.len() + 1 + part.len() > NAME_BYTES_MAX {
            return Err(problem::TOO_LARGE);
        }
        if !self.name.is_empty() {
            self.name.push('.');
        }
        self.name.push_str(part);
        Ok(())
    }

    fn scalar(&mut self) -> Result<Scalar<'t>, &'static str> {
        if self.peek() == Some(b'"') {
            return self.string().map(Scalar::Text);
        }
        let start = self.at;
        let rest = self.text.get(start..).unwrap_or_default();
        let token = rest.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.')).next();
        let token = token.unwrap_or_default();
        self.at += token.len();
        match token {
            "null" => Ok(Scalar::Null),
            "true" => Ok(Scalar::Bool(true)),
            "false" => Ok(Scalar::Bool(false)),
            _ if number::is_not_finite(token) => Ok(Scalar::NotFinite),
            _ if number::is_json(token) => Ok(Scalar::Number(token)),
            _ => Err(problem::BAD_JSON),
        }
    }

    fn string(&mut self) -> Result<Cow<'t, str>, &'static str> {
        self.expect(b'"')?;
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.at += 2;
                }
                Some(0x20..) => self.at += 1,
                Some(_) | None => return Err(problem::BAD_JSON),
            }
        }
        if self.at - start > STRING_BYTES_MAX {
            return Err(problem::TOO_LARGE);
        }
        let (inner, quoted) = (self.text.get(start..self.at), self.text.get(start - 1..=self.at));
        self.at += 1;
        if escaped {
            let text: Option<String> = quoted.and_then(|quoted| serde_json::from_str(quoted).ok());
            return text.map(Cow::Owned).ok_or(problem::BAD_JSON);
        }
        inner.map(Cow::Borrowed).ok_or(problem::BAD_JSON)
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, byte: u8) -> Result<(), &'static str> {
        if self.take(byte) { Ok(()) } else { Err(problem::BAD_JSON) }
    }
}

/// What an object or an array holds.
struct Members {
    count: usize,
    /// No objects and arrays among them.
    flat: bool,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes down what it is given.
    struct Notes(Vec<(String, String)>, Way);

    impl Visitor for Notes {
        fn enter(&mut self, name: &str) -> Way {
            if name == "skipped" { Way::Skip } else { self.1 }
        }

        fn scalar(&mut self, name: &str, scalar: Scalar<'_>) {
            let text = match scalar {
                Scalar::Null => "null".into(),
                Scalar::NotFinite => "nan".into(),
                Scalar::Bool(flag) => flag.to_string(),
                Scalar::Number(text) | Scalar::Array(text) => text.to_owned(),
                Scalar::Text(text) => format!("{text:?}"),
            };
            self.0.push((name.to_owned(), text));
        }
    }

    fn fields(text: &str, way: Way) -> Result<String, &'static str> {
        let mut notes = Notes(Vec::new(), way);
        walk(text, &mut notes)?;
        Ok(notes.0.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn fields_are_named_by_their_way_from_the_top() {
        for (text, wanted) in [
            ("1", "=1"),
            (r#" {"a" : 1 , "b":{"c":true,"d":null}} "#, "a=1 b.c=true b.d=null"),
            (r#"{"":{"":1}}"#, "\"\".\"\"=1"),
            (r#"{"a":[1,"x"],"b":[],"c":{}}"#, "a.0=1 a.1=\"x\""),
            (r#"{"a":[1,[2]]}"#, "a=[1,[2]]"),
            (r#"{"a":nan,"b":-Infinity,"c":NaN}"#, "a=nan b=nan c=nan"),
            (r#"{"skipped":{"a":1},"b":2}"#, "b=2"),
            ("\"a\\u00e9\\\"\"", "=\"aé\\\"\""),
            ("[1e400,18446744073709551616]", "0=1e400 1=18446744073709551616"),
        ] {
            assert_eq!(fields(text, Way::Flat).as_deref(), Ok(wanted), "{text}");
        }
        assert_eq!(fields(r#"{"a":[{"b":1},[2]]}"#, Way::Walk).as_deref(), Ok("a.0.b=1 a.1.0=2"));
    }

    #[test]
    fn an_array_of_more_than_sixteen_is_one_field() {
        let array = |n: usize| format!("{{\"a\":[{}]}}", vec!["1"; n].join(","));
        assert!(fields(&array(16), Way::Flat).unwrap().ends_with("a.15=1"));
        assert!(fields(&array(17), Way::Flat).unwrap().starts_with("a=[1,1"));
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            "{",
            "}",
            "{]",
            "[1,]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{'a':1}",
            "[01]",
            "[+5]",
            "[.5]",
            "[5.]",
            "[21,5",
            "True",
            "1 2",
            "{} {}",
            "\"a",
            "\"\\",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"a\nb\"",
            "nul",
            "[-]",
            "\u{a0}1",
        ] {
            assert_eq!(fields(text, Way::Flat), Err(problem::BAD_JSON), "{text:?}");
        }
    }

    #[test]
    fn depth_keys_names_and_strings_are_bounded() {
        let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(fields(&deep(64), Way::Walk).is_ok());
        assert_eq!(fields(&deep(65), Way::Walk), Err(problem::TOO_DEEP));
        assert_eq!(fields(&deep(100_000), Way::Skip), Err(problem::TOO_DEEP));
        let wide = |n: usize| format!("[{}]", vec!["1"; n].join(","));
        assert!(fields(&wide(512), Way::Walk).is_ok());
        assert_eq!(fields(&wide(513), Way::Walk), Err(problem::TOO_MANY_KEYS));
        assert!(fields(&wide(20_000), Way::Flat).is_ok());
        assert_eq!(fields(&wide(40_000), Way::Flat), Err(problem::TOO_LARGE));
        assert_eq!(fields(&format!("{{\"{}\":1}}", "k".repeat(1100)), Way::Walk), Err(problem::TOO_LARGE));
        assert_eq!(fields(&format!("\"{}\"", "s".repeat(70_000)), Way::Walk), Err(problem::TOO_LARGE));
    }

    /// The fields of a parsed value, named as the walk names them.
    fn flatten(value: &serde_json::Value, name: &str, out: &mut Vec<(String, String)>) {
        let join = |key: &str| {
            let key = if key.is_empty() { "\"\"" } else { key };
            if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
        };
        match value {
            serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| flatten(value, &join(key), out)),
            serde_json::Value::Array(list) => {
                list.iter().enumerate().for_each(|(i, value)| flatten(value, &join(&i.to_string()), out));
            }
            serde_json::Value::String(text) => out.push((name.to_owned(), format!("{text:?}"))),
            other => out.push((name.to_owned(), other.to_string())),
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<u64>().prop_map(Into::into),
            (-1e9..1e9).prop_map(|n: f64| n.into()),
            ".{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(".{0,4}", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_json_text_gives_the_fields_that_serde_json_finds(value in json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let (mut found, mut wanted) = (Notes(Vec::new(), Way::Walk), Vec::new());
            walk(&text.unwrap(), &mut found).unwrap();
            flatten(&value, "", &mut wanted);
            found.0.sort();
            wanted.sort();
            prop_assert_eq!(found.0, wanted);
        }

        #[test]
        fn a_damaged_text_is_taken_only_if_serde_json_takes_it(value in json(), at: prop::sample::Index, byte in "[ -~]") {
            let mut text = value.to_string();
            let at = at.index(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                text.replace_range(at..=at, &byte);
            }
            let strict = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            let ours = fields(&text, Way::Walk);
            if let Ok(fields) = &ours
                && !fields.contains("nan")
            {
                // Serde refuses numbers beyond f64, which the walk hands on as text.
                prop_assert!(strict || text.contains(['e', 'E']), "{}", text);
            }
            if strict {
                prop_assert!(ours.is_ok(), "{} {:?}", text, ours);
            }
        }
    }
}
