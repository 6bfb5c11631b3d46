//! From a payload to readings: pure, bounded, and never a panic, whatever the bytes.
//!
//! A payload is a bare number, JSON, one of six words, or text. What cannot be read is a `problem` and gives no reading;
//! a value that can be read but not trusted is a reading with its quality and reason. Nothing is guessed: `23,9` is
//! never 23. The table of numbers stands in `number.rs`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::json::{STRING_BYTES_MAX, Scalar, Visitor, Way, walk};
use super::mapping::{Role, Target};
use super::number::{self, Bare};
use super::{problem, stamp};
use crate::config::{FieldPath, Format, PathError, Source};
use crate::model::{Quality, Value};

/// Largest payload that is looked into.
const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// Metric of a bare value where nobody names one.
const VALUE: &str = "value";
/// Reason of a replayed value.
const RETAINED: &str = "retained";
/// Reason of a JSON null.
const NULL: &str = "null";

/// How the payloads of a source are read.
#[derive(Debug)]
pub struct CompiledSource {
    format: Format,
    /// Metric of a bare value, where the topic has no `{metric}`.
    metric: Arc<str>,
    root: Option<Arc<str>>,
    time: Option<Arc<str>>,
    drop: Vec<Dropped>,
    /// By path; empty: every field is a metric.
    fields: HashMap<Arc<str>, Field>,
    /// By metric.
    units: HashMap<Arc<str>, Arc<str>>,
    /// Words for online and offline.
    words: Option<(String, String)>,
}

/// What a message says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decoded {
    /// Values in the order of the payload, each metric once.
    pub readings: Vec<Reading>,
    /// From an availability topic.
    pub online: Option<bool>,
    /// The device's time, in Unix milliseconds, not before 2000; whether it lies in the future the caller knows.
    pub time: Option<DeviceTime>,
    /// Why the device's time is there and cannot be used: `before_2000`, `no_zone` or `unreadable`.
    pub time_ignored: Option<&'static str>,
    /// The payload is empty: what was retained under the topic is gone.
    pub cleared: bool,
    /// Why the message could not be read, one of [`problem`]; except for `duplicate_key` it has no readings.
    pub problem: Option<&'static str>,
}

/// One decoded value.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The metric.
    pub metric: Arc<str>,
    /// The value; none if the device says that it has none (null, NaN). A bad text is kept so that a person can see it.
    pub value: Option<Value>,
    /// How far it can be trusted.
    pub quality: Quality,
    /// Why it is not good.
    pub reason: Option<&'static str>,
    /// UCUM unit from the configuration.
    pub unit: Option<Arc<str>>,
}

/// A time that the device put into its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceTime {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub unix_ms: i64,
}

/// Reads a payload. `replay` is for a message that was retained before it got here: its good values are uncertain. A
/// live publish with the retain flag is no replay.
pub fn decode(source: &CompiledSource, target: &Target, payload: &[u8], replay: bool) -> Decoded {
    if payload.is_empty() {
        return Decoded { cleared: true, ..Decoded::default() };
    }
    let result = text_of(payload).and_then(|text| match target.role {
        Role::Online => source.online(text),
        Role::Data => source.data(target, text),
    });
    let mut decoded = match result {
        Ok(decoded) => decoded,
        Err(problem) => Decoded { problem: Some(problem), ..Decoded::default() },
    };
    if replay {
        decoded.readings.iter_mut().for_each(Reading::replayed);
    }
    decoded
}

impl CompiledSource {
    /// Compiles the part of a source that is about payloads; the error holds the path that is none.
    pub(super) fn compile(source: &Source) -> Result<Self, (String, PathError)> {
        let path = |text: &str| match FieldPath::parse(text) {
            Ok(path) => Ok(path.name().clone()),
            Err(error) => Err((text.to_owned(), error)),
        };
        let mut fields = HashMap::new();
        let mut units = HashMap::new();
        for (name, metric) in &source.metrics {
            let field = Field { metric: name.clone(), unit: metric.unit.clone() };
            fields.insert(path(metric.path.as_deref().unwrap_or(name))?, field);
            units.extend(metric.unit.clone().map(|unit| (name.clone(), unit)));
        }
        Ok(Self {
            format: source.format,
            metric: source.metric.clone().unwrap_or_else(|| VALUE.into()),
            root: source.root.as_deref().map(path).transpose()?,
            time: source.time.as_deref().map(path).transpose()?,
            drop: source.drop.iter().map(|text| Dropped::compile(text)).collect(),
            fields,
            units,
            words: source.online.as_ref().map(|online| (online.on.trim().to_owned(), online.off.trim().to_owned())),
        })
    }

    fn data(&self, target: &Target, text: &str) -> Result<Decoded, &'static str> {
        let trimmed = text.trim();
        match self.format {
            Format::Text => Ok(self.bare(target, Found::text(text)?)),
            Format::Json => self.json(target, trimmed),
            Format::Number => Ok(self.bare(target, Found::number(trimmed)?)),
            Format::Auto if trimmed.starts_with(['{', '[']) => self.json(target, trimmed),
            Format::Auto => Ok(self.bare(target, Found::auto(trimmed)?)),
        }
    }

    /// A payload that is one value.
    fn bare(&self, target: &Target, found: Found) -> Decoded {
        let metric = target.metric.as_ref().unwrap_or(&self.metric);
        let reading = found.reading(metric.clone(), self.units.get(metric).cloned());
        Decoded { readings: vec![reading], ..Decoded::default() }
    }

    fn json(&self, target: &Target, text: &str) -> Result<Decoded, &'static str> {
        let mut collector = Collector { source: self, target, decoded: Decoded::default() };
        walk(text, &mut collector)?;
        Ok(collector.decoded)
    }

    fn online(&self, text: &str) -> Result<Decoded, &'static str> {
        #[derive(serde::Deserialize)]
        struct State<'t> {
            #[serde(borrow)]
            state: Cow<'t, str>,
        }
        let text = text.trim();
        let state = if text.starts_with('{') { serde_json::from_str::<State<'_>>(text).ok() } else { None };
        let word = state.as_ref().map_or(text, |state| state.state.trim());
        let online = match &self.words {
            Some((on, _)) if word.eq_ignore_ascii_case(on) => true,
            Some((_, off)) if word.eq_ignore_ascii_case(off) => false,
            _ => return Err(problem::UNKNOWN_WORD),
        };
        Ok(Decoded { online: Some(online), ..Decoded::default() })
    }

    /// What the topic names, in front of a field's name.
    fn prefixed(target: &Target, name: &str) -> Arc<str> {
        match &target.metric {
            Some(metric) => format!("{metric}.{name}").into(),
            None => name.into(),
        }
    }
}

impl Reading {
    fn replayed(&mut self) {
        if self.quality == Quality::Good {
            self.quality = Quality::Uncertain;
            self.reason = Some(RETAINED);
        }
    }
}

/// A metric that the configuration names.
#[derive(Debug)]
struct Field {
    metric: Arc<str>,
    unit: Option<Arc<str>>,
}

/// Fields that are left out.
#[derive(Debug)]
enum Dropped {
    /// This one, with all below it.
    Name(Box<str>),
    /// All with this beginning.
    Beginning(Box<str>),
}

impl Dropped {
    fn compile(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(beginning) => Self::Beginning(beginning.into()),
            // Quotes are allowed as in a path; a text that is no path is taken as it is.
            None => Self::Name(FieldPath::parse(text).map_or_else(|_| text.into(), |path| (&**path.name()).into())),
        }
    }

    fn takes(&self, name: &str) -> bool {
        match self {
            Self::Name(dropped) => is_within(name, dropped),
            Self::Beginning(beginning) => name.starts_with(&**beginning),
        }
    }
}

/// A value with its quality, before it has a name.
struct Found {
    value: Option<Value>,
    quality: Quality,
    reason: Option<&'static str>,
}

impl Found {
    fn good(value: Value) -> Self {
        Self { value: Some(value), quality: Quality::Good, reason: None }
    }

    fn bad(value: Option<Value>, reason: &'static str) -> Self {
        Self { value, quality: Quality::Bad, reason: Some(reason) }
    }

    /// A number that only its text holds.
    fn lossy(text: &str) -> Self {
        Self { value: Some(Value::Text(text.into())), quality: Quality::Uncertain, reason: Some(number::LOSSY) }
    }

    fn text(text: &str) -> Result<Self, &'static str> {
        if text.len() > STRING_BYTES_MAX { Err(problem::TOO_LARGE) } else { Ok(Self::good(Value::Text(text.into()))) }
    }

    fn number(text: &str) -> Result<Self, &'static str> {
        match Self::auto(text)? {
            Self { value: Some(value @ (Value::Text(_) | Value::Bool(_))), quality: Quality::Good, .. } => {
                let text = if let Value::Text(text) = value { text } else { text.into() };
                Ok(Self::bad(Some(Value::Text(text)), number::NOT_A_NUMBER))
            }
            found => Ok(found),
        }
    }

    fn auto(text: &str) -> Result<Self, &'static str> {
        match number::bare(text) {
            Bare::Number(value) => Ok(Self::good(value)),
            Bare::Lossy if text.len() > STRING_BYTES_MAX => Err(problem::TOO_LARGE),
            Bare::Lossy => Ok(Self::lossy(text)),
            Bare::NotFinite => Ok(Self::bad(None, number::NOT_FINITE)),
            Bare::Doubtful(reason) => Ok(Self::bad(Some(Value::Text(text.into())), reason)),
            Bare::Text => match word(text) {
                Some(flag) => Ok(Self::good(Value::Bool(flag))),
                None => Self::text(text),
            },
        }
    }

    fn scalar(scalar: Scalar<'_>) -> Self {
        match scalar {
            Scalar::Null => Self::bad(None, NULL),
            Scalar::NotFinite => Self::bad(None, number::NOT_FINITE),
            Scalar::Bool(flag) => Self::good(Value::Bool(flag)),
            Scalar::Text(text) => Self::good(Value::Text(text.into())),
            Scalar::Array(text) => Self::good(Value::Text(text.into())),
            Scalar::Number(text) => match number::json(text) {
                Bare::Number(value) => Self::good(value),
                _ => Self::lossy(text),
            },
        }
    }

    fn reading(self, metric: Arc<str>, unit: Option<Arc<str>>) -> Reading {
        Reading { metric, value: self.value, quality: self.quality, reason: self.reason, unit }
    }
}

/// Makes readings of the fields that a source wants.
struct Collector<'a> {
    source: &'a CompiledSource,
    target: &'a Target,
    decoded: Decoded,
}

impl Visitor for Collector<'_> {
    fn enter(&mut self, name: &str) -> Way {
        let source = self.source;
        let meets = |wanted: &str| is_within(wanted, name);
        if source.time.as_deref().is_some_and(meets) {
            return Way::Walk;
        }
        let Some(field) = self.below_root(name) else {
            return if source.root.as_deref().is_some_and(meets) { Way::Walk } else { Way::Skip };
        };
        if !source.fields.is_empty() {
            let wanted = field.is_empty() || source.fields.keys().any(|path| is_within(path, field));
            return match (wanted, source.fields.contains_key(field)) {
                (_, true) => Way::Whole,
                (true, false) => Way::Walk,
                (false, false) => Way::Skip,
            };
        }
        let dropped = !field.is_empty() && source.drop.iter().any(|dropped| dropped.takes(field));
        if dropped { Way::Skip } else { Way::Flat }
    }

    fn scalar(&mut self, name: &str, scalar: Scalar<'_>) {
        let source = self.source;
        if source.time.as_deref() == Some(name) && !name.is_empty() {
            match stamp::unix_ms(&scalar) {
                Ok(time) => self.decoded.time = time.map(|unix_ms| DeviceTime { unix_ms }),
                Err(reason) => self.decoded.time_ignored = Some(reason),
            }
            return;
        }
        let Some(field) = self.below_root(name) else { return };
        if field.is_empty() {
            let metric = self.target.metric.as_ref().unwrap_or(&source.metric).clone();
            let unit = source.units.get(&metric).cloned();
            self.push(Found::scalar(scalar).reading(metric, unit));
        } else if !source.fields.is_empty() {
            if let Some(wanted) = source.fields.get(field) {
                self.push(Found::scalar(scalar).reading(wanted.metric.clone(), wanted.unit.clone()));
            }
        } else if !source.drop.iter().any(|dropped| dropped.takes(field)) {
            let metric = CompiledSource::prefixed(self.target, field);
            self.push(Found::scalar(scalar).reading(metric, None));
        }
    }
}

impl Collector<'_> {
    /// The name below the root, "" for the root itself; none outside of it.
    fn below_root<'n>(&self, name: &'n str) -> Option<&'n str> {
        let Some(root) = self.source.root.as_deref() else { return Some(name) };
        let rest = name.strip_prefix(root)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.') }
    }

    /// The last value of a metric counts.
    fn push(&mut self, reading: Reading) {
        match self.decoded.readings.iter_mut().find(|known| known.metric == reading.metric) {
            Some(known) => {
                *known = reading;
                self.decoded.problem = Some(problem::DUPLICATE_KEY);
            }
            None => self.decoded.readings.push(reading),
        }
    }
}

/// The payload as text, without the mark of the byte order and the NULs that C programs send at the end.
fn text_of(payload: &[u8]) -> Result<&str, &'static str> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(problem::TOO_LARGE);
    }
    let text = std::str::from_utf8(payload).map_err(|_| problem::NOT_UTF8)?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text).trim_end_matches('\0'))
}

/// The words for true and false, in any case.
fn word(text: &str) -> Option<bool> {
    let is = |words: [&str; 3]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(["on", "true", "online"]) {
        return Some(true);
    }
    is(["off", "false", "offline"]).then_some(false)
}

/// True if `name` is `outer` or lies below it; everything lies below "".
fn is_within(name: &str, outer: &str) -> bool {
    outer.is_empty() || name.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests;
