//! One file by itself: every key is known and every value has its type, unit and bounds.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::error::{ConfigError, Place, mend_name};
use super::keys::{Key, Kind, ROOT, millis};
use super::{ByteSize, Span};

/// A file that was read.
#[derive(Debug)]
pub(super) struct Document {
    /// Its path as it was named.
    pub(super) path: PathBuf,
    /// Its text.
    pub(super) text: String,
}

/// Where each value of the merged configuration comes from, by its path: `broker.listen`, `source[0].topic`. A later
/// layer replaces the entry of an earlier one, as it does with the value.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Origins {
    places: HashMap<String, Place>,
    /// How many tables each array has got so far, over all files.
    counts: HashMap<&'static str, usize>,
}

impl Origins {
    /// Notes the place of a value.
    pub(super) fn put(&mut self, path: impl Into<String>, place: Place) {
        self.places.insert(path.into(), place);
    }

    /// The place of a value, or of the nearest table around it.
    pub(super) fn find(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return place.clone();
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return Place::BuiltIn,
            }
        }
    }
}

impl Document {
    /// Checks the file; notes where its values lie, and all that is wrong in the order of its lines.
    pub(super) fn inspect(&self, origins: &mut Origins) -> Vec<ConfigError> {
        let table = match DeTable::parse(&self.text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let message = format!("not valid TOML: {}; mend the line", error.message());
                return vec![ConfigError::Syntax { place: self.place(&error.span().unwrap_or_default()), message }];
            }
        };
        let mut inspection = Inspection { document: self, origins, errors: Vec::new() };
        inspection.table(&table, ROOT, &Position { path: String::new(), title: "the file".into(), span: 0..0 });
        let mut errors = inspection.errors;
        errors.sort_by_key(|(start, _)| *start);
        errors.into_iter().map(|(_, error)| error).collect()
    }

    fn place(&self, span: &Range<usize>) -> Place {
        Place::in_file(&self.path, &self.text, span)
    }
}

/// Where in the tree of tables the inspection stands.
struct Position {
    /// Path in the merged configuration; empty at the root.
    path: String,
    /// The table as a user writes it: `[broker]`, `[[source]]`.
    title: String,
    /// The table's header.
    span: Range<usize>,
}

impl Position {
    /// The path of a key in this table.
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The title of a table in this table.
    fn title_of(&self, key: &str) -> String {
        let inner = self.title.trim_matches(['[', ']']);
        if self.path.is_empty() { format!("[{key}]") } else { format!("[{inner}.{key}]") }
    }

    /// How a table in this table is written.
    fn example_of(&self, key: &Key, below: &[Key]) -> String {
        match key.kind {
            _ if self.path.is_empty() => format!("begin it with a line `[{}]`", key.name),
            Kind::NamedTables(..) => format!("write `{} = {{ ... }}` with a name and a table for each", key.name),
            _ => format!("write `{} = {{ {} = ... }}`", key.name, below.first().map_or("", |key| key.name)),
        }
    }

    /// The tables right below this one, with `keys`, that know a name.
    fn homes_of(&self, name: &str, keys: &[Key]) -> Vec<String> {
        let homes = keys.iter().filter(|key| !self.path.is_empty() && key.has_below(name));
        homes
            .map(|key| match key.kind {
                Kind::NamedTables(..) => self.title_of(&format!("{}.<name>", key.name)),
                _ => self.title_of(key.name),
            })
            .collect()
    }
}

struct Inspection<'a> {
    document: &'a Document,
    origins: &'a mut Origins,
    /// With the offset of each.
    errors: Vec<(usize, ConfigError)>,
}

impl Inspection<'_> {
    fn table(&mut self, table: &DeTable<'_>, keys: &'static [Key], at: &Position) {
        for (name, value) in table {
            match keys.iter().find(|key| key.name == name.get_ref().as_ref()) {
                Some(key) => self.value(key, value, at),
                None => self.unknown(name.get_ref(), &name.span(), keys, at),
            }
        }
        for key in keys.iter().filter(|key| key.required) {
            if !table.keys().any(|name| name.get_ref() == key.name) {
                let message = match key.kind {
                    Kind::Table(_) => format!("is missing; add a line `{}` below {}", at.title_of(key.name), at.title),
                    _ => format!("is missing; add a line `{} = ...` to {}", key.name, at.title),
                };
                self.wrong(&at.span, at.path_of(key.name), message);
            }
        }
    }

    fn value(&mut self, key: &'static Key, value: &Spanned<DeValue<'_>>, at: &Position) {
        let path = at.path_of(key.name);
        let inner = || Position { path: path.clone(), title: at.title_of(key.name), span: value.span() };
        match (key.kind, value.get_ref()) {
            (Kind::Table(keys), DeValue::Table(table)) => {
                self.note(&path, &value.span());
                self.table(table, keys, &inner());
            }
            (Kind::NamedTables(keys, _), DeValue::Table(table)) => {
                self.note(&path, &value.span());
                self.bound(key.kind, table.len(), &path, &value.span());
                for (name, value) in table {
                    self.named_table(keys, name.get_ref(), value, &inner());
                }
            }
            (Kind::Tables(keys, _), DeValue::Array(array)) => {
                for item in array {
                    self.item(key, keys, item);
                }
            }
            (Kind::Table(keys) | Kind::NamedTables(keys, _), other) => {
                self.note(&path, &value.span());
                let message = format!("must be a table, not {}; {}", written(other), at.example_of(key, keys));
                self.wrong(&value.span(), path, message);
            }
            (kind, value_) => {
                self.note(&path, &value.span());
                if let Err(message) = kind.check(value_) {
                    self.wrong(&value.span(), path, message);
                }
            }
        }
    }

    /// One table of an array of tables; arrays go on over files.
    fn item(&mut self, key: &'static Key, keys: &'static [Key], item: &Spanned<DeValue<'_>>) {
        let count = self.origins.counts.entry(key.name).or_default();
        let path = format!("{}[{count}]", key.name);
        *count += 1;
        let count = *count;
        self.note(&path, &item.span());
        self.bound(key.kind, count, &path, &item.span());
        match item.get_ref() {
            DeValue::Table(table) => {
                let title = format!("[[{}]]", key.name);
                self.table(table, keys, &Position { path, title, span: item.span() });
            }
            other => {
                let message =
                    format!("must be a table, not {}; begin it with a line `[[{}]]`", written(other), key.name);
                self.wrong(&item.span(), path, message);
            }
        }
    }

    fn named_table(&mut self, keys: &'static [Key], name: &str, value: &Spanned<DeValue<'_>>, at: &Position) {
        let path = at.path_of(name);
        self.note(&path, &value.span());
        match value.get_ref() {
            DeValue::Table(table) => {
                let at = Position { path, title: at.title_of(name), span: value.span() };
                self.table(table, keys, &at);
            }
            other => {
                let example = keys.first().map_or("", |key| key.name);
                let message = format!("must be a table, not {}; write `{{ {example} = ... }}`", written(other));
                self.wrong(&value.span(), path, message);
            }
        }
    }

    fn unknown(&mut self, name: &str, span: &Range<usize>, keys: &[Key], at: &Position) {
        let known: Vec<&str> = keys.iter().map(|key| key.name).collect();
        let below = at.homes_of(name, keys);
        let elsewhere = ROOT.iter().find(|table| !std::ptr::eq(table.below(), keys) && table.has_below(name));
        let mend = match elsewhere {
            _ if !below.is_empty() => format!("it belongs into {}", below.join(" or ")),
            Some(table) if matches!(table.kind, Kind::Tables(..)) => format!("it belongs into [[{}]]", table.name),
            Some(table) => format!("it belongs into [{}]", table.name),
            None => mend_name(name, &known),
        };
        let (place, table) = (self.document.place(span), at.title.clone());
        self.errors.push((span.start, ConfigError::UnknownKey { place, key: name.into(), table, mend }));
    }

    fn bound(&mut self, kind: Kind, count: usize, path: &str, span: &Range<usize>) {
        if let Kind::Tables(_, most) | Kind::NamedTables(_, most) = kind
            && count > most
        {
            self.wrong(span, path.to_owned(), format!("is one too many, {most} is the most; remove some"));
        }
    }

    fn note(&mut self, path: &str, span: &Range<usize>) {
        self.origins.put(path, self.document.place(span));
    }

    fn wrong(&mut self, span: &Range<usize>, key: String, message: String) {
        let place = self.document.place(span);
        self.errors.push((span.start, ConfigError::Value { place, key, message }));
    }
}

impl Kind {
    /// What is wrong with a value, with the mend; follows the key's name in a sentence.
    fn check(self, value: &DeValue<'_>) -> Result<(), String> {
        match (self, value) {
            (Self::Flag, DeValue::Boolean(_)) | (Self::Text, DeValue::String(_)) => Ok(()),
            (Self::Count(..), DeValue::Integer(number)) => self.check_count(integer(number)),
            (Self::Number | Self::Deadband, DeValue::Integer(number)) => {
                check_number(integer(number).map(|n| n as f64))
            }
            (Self::Number | Self::Deadband, DeValue::Float(number)) => check_number(number.as_str().parse().ok()),
            (Self::Size(..), DeValue::Integer(number)) => self.check_size(
                integer(number).and_then(|n| u64::try_from(n).ok()).map(ByteSize).ok_or_else(|| written(value))?,
            ),
            (Self::Time(..), DeValue::Integer(number)) => {
                Err(format!("needs its unit; write \"{0}s\" or \"{0}ms\"", number.as_str()))
            }
            (Self::Texts(most), DeValue::Array(array)) => {
                if let Some(other) = array.iter().find(|item| !item.get_ref().is_str()) {
                    return Err(format!("must hold texts only, not {}; put it into quotes", written(other.get_ref())));
                }
                check_most(array.len(), most)
            }
            (Self::TextMap(most), DeValue::Table(table)) => {
                if let Some((name, other)) = table.iter().find(|(_, item)| !item.get_ref().is_str()) {
                    let name = name.get_ref();
                    return Err(format!(
                        "must hold texts only, but {name:?} is {}; put it into quotes",
                        written(other.get_ref())
                    ));
                }
                check_most(table.len(), most)
            }
            (Self::Range, DeValue::Array(array)) => check_range(array),
            (
                Self::Size(..) | Self::Time(..) | Self::Address | Self::Choice(_) | Self::Deadband,
                DeValue::String(text),
            ) => self.check_text(text),
            (kind, other) => Err(format!("must be {}, not {}{}", kind.wanted(), written(other), kind.example())),
        }
    }

    /// What is wrong with a value that is given as text: in an environment variable, or in quotes.
    pub(super) fn check_text(self, text: &str) -> Result<(), String> {
        let refused = || format!("must be {}, not {text:?}{}", self.wanted(), self.example());
        match self {
            Self::Flag if !matches!(text, "true" | "false") => Err(refused()),
            Self::Count(..) => self.check_count(Some(text.parse().map_err(|_| refused())?)),
            Self::Size(..) => self.check_size(ByteSize::parse(text).ok_or_else(refused)?),
            Self::Time(least, most) => {
                let span = Span::parse(text).ok_or_else(refused)?;
                check_bounds(span, millis(least), millis(most), "\"")
            }
            Self::Address => text.parse::<std::net::SocketAddr>().map(|_| ()).map_err(|_| refused()),
            Self::Choice(words) if !words.contains(&text) => Err(format!("is {text:?}; {}", mend_name(text, words))),
            Self::Deadband => match text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok()) {
                Some(percent) if (0.0..=100.0).contains(&percent) => Ok(()),
                _ => Err(refused()),
            },
            _ => Ok(()),
        }
    }

    fn check_count(self, number: Option<i64>) -> Result<(), String> {
        let (Self::Count(least, most), Some(number)) = (self, number) else {
            return Err("is no number of 64 bits; write a smaller one".into());
        };
        check_bounds(number, i64::try_from(least).unwrap_or(i64::MAX), i64::try_from(most).unwrap_or(i64::MAX), "")
    }

    fn check_size(self, size: ByteSize) -> Result<(), String> {
        let Self::Size(least, most) = self else { return Ok(()) };
        check_bounds(size, least, most, "\"")
    }

    fn wanted(self) -> String {
        let name = self.name();
        let article = if matches!(self, Self::Address | Self::Texts(_)) { "an" } else { "a" };
        match self {
            Self::Tables(..) => "an array of tables".into(),
            Self::Flag | Self::Range => name.into(),
            _ => format!("{article} {name}"),
        }
    }

    fn example(self) -> &'static str {
        match self {
            Self::Text => "; put it into quotes",
            Self::Flag => "; write true or false without quotes",
            Self::Count(..) => "; write for example 100",
            Self::Number => "; write for example 0.5",
            Self::Size(..) => "; write for example \"8MiB\"",
            Self::Time(..) => "; write for example \"30s\"",
            Self::Address => "; write for example \"127.0.0.1:1883\"",
            Self::Choice(_) => "; write it in quotes",
            Self::Texts(_) => "; write for example [\"a\", \"b\"]",
            Self::TextMap(_) => "; write for example { site = \"muc1\" }",
            Self::Deadband => "; write for example 0.2 or \"1%\"",
            Self::Range => "; write for example [0, 150]",
            Self::Tables(..) => "; begin each with its name in double brackets, such as `[[source]]`",
            Self::Table(_) | Self::NamedTables(..) => "; write it in braces",
        }
    }
}

/// `quote` is what a bound is written in.
fn check_bounds<T: Copy + PartialOrd + std::fmt::Display>(
    value: T,
    least: T,
    most: T,
    quote: &str,
) -> Result<(), String> {
    if value < least {
        Err(format!(
            "is {value}, below the least of {least}; set it to {quote}{least}{quote} or more, or remove the line"
        ))
    } else if value > most {
        Err(format!("is {value}, above the most of {most}; set it to {quote}{most}{quote} or less, or remove the line"))
    } else {
        Ok(())
    }
}

fn check_number(number: Option<f64>) -> Result<(), String> {
    match number {
        Some(number) if number.is_finite() && number >= 0.0 => Ok(()),
        _ => Err("must be a number, not negative and not endless; write for example 0.5".into()),
    }
}

fn check_most(count: usize, most: usize) -> Result<(), String> {
    if count > most { Err(format!("holds {count}, {most} is the most; remove some")) } else { Ok(()) }
}

fn check_range(array: &[Spanned<DeValue<'_>>]) -> Result<(), String> {
    let number = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
        DeValue::Integer(number) => integer(number).map(|n| n as f64),
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    };
    let numbers: Option<Vec<f64>> = array.iter().map(number).collect();
    match numbers.as_deref() {
        Some([low, high]) if low < high && low.is_finite() && high.is_finite() => Ok(()),
        _ => Err("must be two numbers, the lower one first; write for example [0, 150]".into()),
    }
}

fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A value in the words of a message.
fn written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.chars().count() <= 40 => format!("the text {text:?}"),
        DeValue::String(_) => "a text".into(),
        DeValue::Integer(number) => format!("the number {}", number.as_str()),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".into(),
        DeValue::Array(_) => "an array".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let document = Document { path: "t.toml".into(), text: text.into() };
        document.inspect(&mut Origins::default()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_unknown_key_names_its_place_and_the_nearest_name() {
        let found = errors("[broker]\n  lisen = \"127.0.0.1:1\"\n");
        assert_eq!(
            found,
            [
                "t.toml:2:3: unknown key \"lisen\" in [broker]; did you mean \"listen\"?\n  2 |   lisen = \"127.0.0.1:1\"\n    |   ^^^^^"
            ]
        );
    }

    #[test]
    fn an_unknown_key_of_another_table_is_told_where_it_belongs() {
        let found = errors(
            "[broker]\nwatchers_max = 3\n[[sink]]\nname = \"k\"\nkafka = { brokers = [\"h:1\"] }\nexpr = \"x\"\n",
        );
        assert!(found[0].contains("it belongs into [serve]"), "{}", found[0]);
        assert!(found[1].contains("unknown key \"expr\" in [[sink]]; it belongs into [[alert]]"), "{}", found[1]);
    }

    #[test]
    fn an_unknown_key_that_is_like_nothing_gets_the_whole_list() {
        let found = errors("[log]\ncolour = true\n");
        assert!(found[0].contains("unknown key \"colour\" in [log]; known are level"), "{}", found[0]);
    }

    #[test]
    fn all_errors_of_a_file_are_told_in_the_order_of_its_lines() {
        let found = errors("[serve]\nwatchers_max = 0\n[broker]\ninflight_max = 70000\nx = 1\n[gateway]\nname = 5\n");
        let lines: Vec<&str> = found.iter().map(|error| error.split(": ").next().unwrap()).collect();
        assert_eq!(lines, ["t.toml:2:16", "t.toml:4:16", "t.toml:5:1", "t.toml:7:8"]);
    }

    #[test]
    fn every_wrong_value_says_what_to_write() {
        for (line, wanted) in [
            ("[gateway]\nname = 5", "gateway.name must be a text, not the number 5; put it into quotes"),
            (
                "[broker]\nanonymous = \"yes\"",
                "must be true or false, not the text \"yes\"; write true or false without",
            ),
            ("[broker]\ninflight_max = 0", "is 0, below the least of 1; set it to 1 or more, or remove the line"),
            ("[broker]\ninflight_max = -1", "is -1, below the least of 1"),
            ("[broker]\ninflight_max = 1.5", "must be a whole number, not the number 1.5; write for example 100"),
            ("[broker]\npacket_bytes_max = \"8MB\"", "must be a size, not \"8MB\"; write for example \"8MiB\""),
            ("[broker]\npacket_bytes_max = \"17MiB\"", "is 17MiB, above the most of 2MiB; set it to \"2MiB\" or less"),
            ("[broker]\npacket_bytes_max = 5", "is 5B, below the least of 1KiB"),
            ("[broker]\nconnect_timeout = 30", "needs its unit; write \"30s\" or \"30ms\""),
            ("[broker]\nconnect_timeout = \"soon\"", "must be a duration, not \"soon\"; write for example \"30s\""),
            ("[broker]\nconnect_timeout = \"0s\"", "is 0s, below the least of 1s"),
            ("[broker]\nlisten = \"localhost:1883\"", "must be an IP address and port, not \"localhost:1883\""),
            ("[queue]\noverflow = \"drop_old\"", "is \"drop_old\"; did you mean \"drop_oldest\"?"),
            ("broker = 5", "broker must be a table, not the number 5; begin it with a line `[broker]`"),
            (
                "[source]\ntopic = \"a\"",
                "must be an array of tables, not a table; begin each with its name in double brackets",
            ),
            ("[[source]]\nonline = \"a\"", "must be a table, not the text \"a\"; write `online = { topic = ... }`"),
            (
                "[[source]]\nmetrics = [\"t\"]",
                "metrics must be a table, not an array; write `metrics = { ... }` with a name",
            ),
            ("[[source]]\ndeadband = 1", "it belongs into [source.metrics.<name>] or [source.uplink]"),
            ("[[source]]\nunit = \"Cel\"", "it belongs into [source.metrics.<name>]"),
            ("[[sink]]\nbrokers = []", "it belongs into [sink.kafka]"),
            ("[[sink]]\nname = \"a\"", "sink[0].kafka is missing; add a line `[sink.kafka]` below [[sink]]"),
            ("[[source]]\ndevice = \"a\"", "source[0].topic is missing; add a line `topic = ...` to [[source]]"),
            ("[[source]]\ntopic = \"a\"\nlabels = { a = 1 }", "must hold texts only, but \"a\" is the number 1"),
            ("[[source]]\ntopic = \"a\"\ndrop = [1]", "must hold texts only, not the number 1"),
            ("[[source]]\ntopic = \"a\"\nmetrics = { t = 1 }", "source[0].metrics.t must be a table, not the number 1"),
            ("[[source]]\ntopic = \"a\"\nmetrics.t.range = [5, 1]", "must be two numbers, the lower one first"),
            ("[[source]]\ntopic = \"a\"\nmetrics.t.pth = \"x\"", "in [source.metrics.t]; did you mean \"path\"?"),
            ("[[source]]\ntopic = \"a\"\nuplink.deadband = -1", "must be a number, not negative"),
            ("[[source]]\ntopic = \"a\"\nuplink.deadband = \"101%\"", "must be a number or per cent, not \"101%\""),
            ("source = [1]", "source[0] must be a table, not the number 1; begin it with a line `[[source]]`"),
            ("x = ", "not valid TOML"),
        ] {
            let found = errors(line);
            assert!(found.iter().any(|error| error.contains(wanted)), "{line}\n wanted {wanted}\n found {found:#?}");
        }
    }

    #[test]
    fn a_good_file_has_no_errors_and_every_value_a_place() {
        let text =
            "[broker]\nlisten = \"0.0.0.0:1883\"\n[[source]]\ntopic = \"a/{device}\"\n[[source]]\ntopic = \"b\"\n";
        let document = Document { path: "t.toml".into(), text: text.into() };
        let mut origins = Origins::default();
        assert!(document.inspect(&mut origins).is_empty());
        assert_eq!(origins.find("broker.listen").to_string(), "t.toml:2:10");
        assert_eq!(origins.find("source[1].topic").to_string(), "t.toml:6:9");
        assert_eq!(origins.find("source[1].device").to_string(), "t.toml:5:1");
        assert_eq!(origins.find("serve.listen"), Place::BuiltIn);
    }

    #[test]
    fn arrays_of_tables_are_bounded_and_counted_on_over_files() {
        let sinks = "[[sink]]\nname = \"k\"\nkafka = { brokers = [\"h:1\"] }\n".repeat(5);
        let document = Document { path: "t.toml".into(), text: sinks };
        let mut origins = Origins::default();
        assert!(document.inspect(&mut origins).is_empty());
        let second = document.inspect(&mut origins);
        assert_eq!(second.len(), 2, "{second:#?}");
        assert!(second[0].to_string().contains("sink[8] is one too many, 8 is the most"), "{}", second[0]);
    }

    mod whatever_the_text {
        use proptest::prelude::*;

        use super::*;
        use crate::config::{Config, default_toml};

        fn all_as_code() -> String {
            default_toml()
                .lines()
                .filter_map(|line| match line.strip_prefix('#') {
                    Some(rest) if rest.starts_with(' ') => None,
                    Some(rest) => Some(format!("{rest}\n")),
                    None => Some(format!("{line}\n")),
                })
                .collect()
        }

        proptest! {
            #[test]
            fn what_the_inspection_lets_through_the_schema_takes(at: prop::sample::Index, put in "[ -~]{0,2}|\n|é") {
                let mut text = all_as_code();
                let at = at.index(text.len());
                text.replace_range(at..=at, &put);
                if errors(&text).is_empty() {
                    let read = toml::from_str::<Config>(&text);
                    prop_assert!(read.is_ok(), "{:?}", read);
                }
            }
        }
    }
}
