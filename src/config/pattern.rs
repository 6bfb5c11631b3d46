//! Topic patterns: MQTT filters with named placeholders.

use std::fmt;
use std::sync::Arc;

/// An MQTT filter whose wildcards have names.
///
/// A level is plain text, `+`, `{name}` (one level, may be empty), `{name...}` (one or more levels, once in a pattern),
/// or `#` at the end (any number of levels, also none). A level is never a mix of text and placeholder. As in MQTT a
/// wildcard in the first level does not take a topic that begins with `$`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPattern {
    levels: Vec<Level>,
}

/// One level of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Level {
    Text(Box<str>),
    One(Option<Arc<str>>),
    Rest(Arc<str>),
    Any,
}

/// Why a text is no pattern; each ends with the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing there, or too much.
    #[error("has {0} bytes, 1 to {PATTERN_BYTES_MAX} are allowed; shorten it")]
    Length(usize),
    /// Text and wildcard in one level.
    #[error("has text and a wildcard in the level {0:?}; a wildcard or placeholder must be a level of its own")]
    Mixed(String),
    /// A name that is no name.
    #[error("has a placeholder {0:?}; its name must be letters, digits, `_` or `-`, as in {{line}}")]
    Name(String),
    /// The same name twice.
    #[error("has the placeholder {{{0}}} twice; give one of them another name")]
    Twice(String),
    /// `#` before the end.
    #[error("has `#` before its end; use `+` for one level or a placeholder {{name...}} for several")]
    Early,
    /// More than one placeholder of several levels.
    #[error("has two wildcards that take several levels; leave one")]
    TwoRests,
    /// A character that MQTT forbids.
    #[error("has a NUL character; remove it")]
    Nul,
}

/// Longest pattern in bytes.
const PATTERN_BYTES_MAX: usize = 1024;

impl TopicPattern {
    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::Length(text.len()));
        }
        if text.contains('\0') {
            return Err(PatternError::Nul);
        }
        let levels = text.split('/').map(Level::parse).collect::<Result<Vec<_>, _>>()?;
        if levels.iter().rev().skip(1).any(|level| *level == Level::Any) {
            return Err(PatternError::Early);
        }
        if levels.iter().filter(|level| matches!(level, Level::Rest(_) | Level::Any)).count() > 1 {
            return Err(PatternError::TwoRests);
        }
        let pattern = Self { levels };
        let mut names: Vec<&str> = pattern.names().collect();
        names.sort_unstable();
        match names.windows(2).find_map(|pair| (pair.first() == pair.last()).then(|| pair.first())?) {
            Some(name) => Err(PatternError::Twice((*name).to_owned())),
            None => Ok(pattern),
        }
    }

    /// The names of the placeholders, from left to right.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.levels.iter().filter_map(|level| match level {
            Level::One(Some(name)) | Level::Rest(name) => Some(&**name),
            _ => None,
        })
    }

    /// The MQTT filter that takes at least the topics of this pattern.
    pub fn filter(&self) -> String {
        let mut levels: Vec<&str> = Vec::with_capacity(self.levels.len());
        for level in &self.levels {
            match level {
                Level::Text(text) => levels.push(text),
                Level::One(_) => levels.push("+"),
                Level::Rest(_) | Level::Any => {
                    levels.push("#");
                    break;
                }
            }
        }
        levels.join("/")
    }

    /// Matches a topic; the placeholders with what they took, from left to right.
    pub fn matches<'t>(&self, topic: &'t str) -> Option<Vec<(&Arc<str>, &'t str)>> {
        if topic.starts_with('$') && !matches!(self.levels.first(), Some(Level::Text(_))) {
            return None;
        }
        let mut taken = Vec::new();
        let mut rest = Some(topic);
        for (i, level) in self.levels.iter().enumerate() {
            let (head, tail) = match (level, rest) {
                (Level::Any, _) => return Some(taken),
                (_, None) => return None,
                (Level::Rest(_), Some(text)) => split_before_last(text, self.levels.len() - i - 1)?,
                (_, Some(text)) => text.split_once('/').map_or((text, None), |(head, tail)| (head, Some(tail))),
            };
            match level {
                Level::Text(text) if **text != *head => return None,
                Level::One(Some(name)) | Level::Rest(name) => taken.push((name, head)),
                _ => {}
            }
            rest = tail;
        }
        rest.is_none().then_some(taken)
    }
}

/// `text` without its last `count` levels, and these; none if there are too few.
fn split_before_last(text: &str, count: usize) -> Option<(&str, Option<&str>)> {
    let mut end = text.len();
    for _ in 0..count {
        end = text.get(..end)?.rfind('/')?;
    }
    Some((text.get(..end)?, if count == 0 { None } else { text.get(end + 1..) }))
}

impl Level {
    fn parse(text: &str) -> Result<Self, PatternError> {
        match text {
            "+" => return Ok(Self::One(None)),
            "#" => return Ok(Self::Any),
            _ if !text.contains(['+', '#', '{', '}']) => return Ok(Self::Text(text.into())),
            _ => {}
        }
        let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let inner = inner.ok_or_else(|| PatternError::Mixed(text.to_owned()))?;
        if inner.contains(['{', '}']) {
            return Err(PatternError::Mixed(text.to_owned()));
        }
        let (name, several) = inner.strip_suffix("...").map_or((inner, false), |name| (name, true));
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(plain) {
            return Err(PatternError::Name(text.to_owned()));
        }
        Ok(if several { Self::Rest(name.into()) } else { Self::One(Some(name.into())) })
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, level) in self.levels.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "/" })?;
            match level {
                Level::Text(text) => f.write_str(text)?,
                Level::One(None) => f.write_str("+")?,
                Level::One(Some(name)) => write!(f, "{{{name}}}")?,
                Level::Rest(name) => write!(f, "{{{name}...}}")?,
                Level::Any => f.write_str("#")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;

    fn taken(pattern: &str, topic: &str) -> Option<String> {
        let pattern = TopicPattern::parse(pattern).unwrap();
        let taken = pattern.matches(topic)?;
        Some(taken.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn placeholders_take_their_levels() {
        for (pattern, topic, wanted) in [
            (
                "plant/{line}/{device}/{metric}",
                "plant/l1/press07/temperature",
                Some("line=l1 device=press07 metric=temperature"),
            ),
            ("plant/{line}/{device}/{metric}", "plant/l1/press07", None),
            ("plant/{line}/{device}", "plant/l1/press07/temperature", None),
            ("te/device/{device}///m/{metric}", "te/device/main///m/env", Some("device=main metric=env")),
            ("te/device/{device}///m/{metric}", "te/device/main/x//m/env", None),
            ("/neuron/{app}/{device}/{group}", "/neuron/mq1/plc1/fast", Some("app=mq1 device=plc1 group=fast")),
            ("z/{device...}", "z/hall/door 4", Some("device=hall/door 4")),
            ("z/{device...}", "z", None),
            ("z/{device...}", "z/", Some("device=")),
            ("z/{device...}/availability", "z/hall/door 4/availability", Some("device=hall/door 4")),
            ("z/{device...}/availability", "z/availability", None),
            ("z/{device...}/x/{metric}", "z/a/b/x/t", Some("device=a/b metric=t")),
            ("z/{device...}/x/{metric}", "z/a/b/y/t", None),
            ("+/{device}/#", "a/b/c/d", Some("device=b")),
            ("+/{device}/#", "a/b", Some("device=b")),
            ("+/{device}/#", "a", None),
            ("#", "a", Some("")),
            ("#", "$SYS/x", None),
            ("{device}/online", "$SYS/online", None),
            ("homie/5/{device}/$state", "homie/5/dev9/$state", Some("device=dev9")),
            ("a", "A", None),
        ] {
            assert_eq!(taken(pattern, topic).as_deref(), wanted, "{pattern} on {topic}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_mend() {
        for (text, wanted) in [
            ("", "has 0 bytes"),
            ("a/sensor-{device}", "must be a level of its own"),
            ("a/b+", "must be a level of its own"),
            ("a/{device}{metric}", "must be a level of its own"),
            ("a/{}", "letters, digits"),
            ("a/{dév}", "letters, digits"),
            ("a/{x}/{x}", "has the placeholder {x} twice"),
            ("#/a", "has `#` before its end"),
            ("{a...}/{b...}", "leave one"),
            ("{a...}/#", "leave one"),
            ("a\0", "NUL"),
        ] {
            let error = TopicPattern::parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_pattern_is_written_as_it_was_read_and_as_a_filter() {
        for (text, filter) in [("a/{b}/+/{c...}/d", "a/+/+/#"), ("a//b", "a//b"), ("{device}/#", "+/#"), ("/a/", "/a/")]
        {
            let pattern = TopicPattern::parse(text).unwrap();
            assert_eq!((pattern.to_string().as_str(), pattern.filter().as_str()), (text, filter));
        }
    }

    mod whatever_the_text {
        use proptest::prelude::*;

        use super::*;

        proptest! {
            #[test]
            fn nothing_panics_and_what_was_taken_lies_in_the_topic(pattern in "[a/+#{}.$]{0,12}", topic in "[a/b$]{0,12}") {
                if let Ok(pattern) = TopicPattern::parse(&pattern)
                    && let Some(taken) = pattern.matches(&topic)
                {
                    for (_, text) in taken {
                        prop_assert!(topic.contains(text));
                    }
                }
            }
        }
    }
}
