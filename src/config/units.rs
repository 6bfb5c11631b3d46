//! Quantities with units: `"8MiB"`, `"30s"`.

use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An amount of bytes, written `"512KiB"`, `"8MiB"`, `"1GiB"` or a plain number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Binary units, largest first.
const BYTE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl ByteSize {
    /// So many MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// So many KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        for (unit, factor) in BYTE_UNITS {
            if let Some(number) = text.strip_suffix(unit) {
                return number.trim().parse::<u64>().ok()?.checked_mul(factor).map(Self);
            }
        }
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = BYTE_UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let (unit, factor) = exact.copied().unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// A duration, written `"250ms"`, `"30s"`, `"10m"`, `"2h"`, `"7d"` or joined as `"1h30m"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Units of time in milliseconds, largest first; `ms` before `m` and `s` so that it is not cut.
const SPAN_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1000)];

impl Span {
    /// So many seconds.
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (mut rest, mut total) = (text, 0_u64);
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit())?;
            let (number, tail) = rest.split_at(digits);
            let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(letters);
            let (_, factor) = SPAN_UNITS.iter().find(|(name, _)| *name == unit)?;
            total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*factor)?)?;
            rest = tail;
        }
        (!text.is_empty()).then(|| Self(Duration::from_millis(total)))
    }
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| format!("{text:?} is no duration; write for example \"30s\""))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let exact = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
        let (unit, factor) = exact.into_iter().find(|(_, f)| ms >= *f && ms.is_multiple_of(*f)).unwrap_or(("s", 1000));
        write!(f, "{}{unit}", ms / factor)
    }
}

/// `text_or_number` for the two types above: TOML and environment give either.
#[derive(Deserialize)]
#[serde(untagged)]
enum Raw {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Raw::deserialize(deserializer) {
            Ok(Raw::Number(bytes)) => Ok(Self(bytes)),
            Ok(Raw::Text(text)) => Self::parse(&text)
                .ok_or_else(|| D::Error::custom(format!("{text:?} is no size; write for example \"8MiB\""))),
            Err(_) => Err(D::Error::custom("a size is a text such as \"8MiB\", or a whole number of bytes")),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Raw::deserialize(deserializer) {
            Ok(Raw::Text(text)) => Self::parse(&text)
                .ok_or_else(|| D::Error::custom(format!("{text:?} is no duration; write for example \"30s\""))),
            Ok(Raw::Number(n)) => {
                Err(D::Error::custom(format!("a duration needs its unit; write \"{n}s\" or \"{n}ms\"")))
            }
            Err(_) => Err(D::Error::custom("a duration is a text such as \"30s\"")),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_with_their_unit() {
        for (text, bytes) in [("8MiB", 8 << 20), ("512 KiB", 512 << 10), ("100", 100), ("0B", 0)] {
            assert_eq!(ByteSize::parse(text), Some(ByteSize(bytes)), "{text}");
        }
        for text in ["8MB", "-1", "x", "", "99999999999GiB"] {
            assert_eq!(ByteSize::parse(text), None, "{text}");
        }
        assert_eq!(ByteSize::mib(8).to_string(), "8MiB");
        assert_eq!(ByteSize(1025).to_string(), "1025B");
    }

    #[test]
    fn spans_are_read_and_written_with_their_unit() {
        for (text, ms) in [("250ms", 250), ("30s", 30_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0s", 0)] {
            assert_eq!(Span::parse(text), Some(Span(Duration::from_millis(ms))), "{text}");
        }
        for text in ["30", "s", "", "1x", "-1s", "1 s"] {
            assert_eq!(Span::parse(text), None, "{text}");
        }
        assert_eq!(Span::secs(90).to_string(), "90s");
        assert_eq!(Span::secs(3600).to_string(), "1h");
    }
}
